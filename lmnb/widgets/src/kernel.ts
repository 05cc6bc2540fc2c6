// Tells when a widget's kernel is gone. Hosts say it in different ways, or only by failing to send.

import type { HostKernel, HostModel } from "./protocol";

const GONE_STATES = ["restarting", "autorestarting", "terminating", "dead"];

/** Calls `lost` when the host says that the widget's kernel or comm is gone. Returns what ends the watch. */
export function watchKernel(model: HostModel, lost: () => void): () => void {
  model.on("comm:close", lost);
  model.on("comm_live_update", lost); // ipywidgets says it of a live comm only when that has been cut
  const kernel = kernelOf(model);
  const onStatus = (_: unknown, status: string) => GONE_STATES.includes(status) && lost();
  kernel?.statusChanged?.connect(onStatus);
  kernel?.disposed?.connect(lost);
  return () => {
    model.off("comm:close", lost);
    model.off("comm_live_update", lost);
    kernel?.statusChanged?.disconnect(onStatus);
    kernel?.disposed?.disconnect(lost);
  };
}

function kernelOf(model: HostModel): HostKernel | null | undefined {
  try {
    return model.widget_manager?.kernel;
  } catch {
    return null; // a manager without a session
  }
}
