// The front-end module that anywidget loads: one for both views. State lives in the closure of the default
// export, because anywidget hands `initialize` and `render` different model proxies, and caches the module.
// Private members of all classes begin with `_`: the build shortens these names.

import { Connection } from "./connection";
import type { CacheEvent, HostModel, RenderProps, RunEvent, Snapshot } from "./protocol";
import type { RunState } from "./run_model";
import { renderRun, RunStore } from "./run_view";
import type { CacheState } from "./tree_model";
import { CacheStore, renderCache } from "./tree_view";

interface Mounted {
  render(el: HTMLElement): () => void;
  close(): void;
}

function mount(model: HostModel): Mounted {
  const text = String(model.get("snapshot") ?? "");
  const kind = text ? (JSON.parse(text) as Snapshot<unknown>).kind : "run";
  if (kind === "cache") {
    const store = new CacheStore();
    const connection = new Connection<CacheState, CacheEvent>(model, store);
    return { render: (el) => renderCache(el, store, connection), close: () => connection.close() };
  }
  const store = new RunStore();
  const connection = new Connection<RunState, RunEvent>(model, store);
  // A page that stands alone has no kernel to cancel anything in.
  const canCancel = model.get("_esm") !== undefined;
  return { render: (el) => renderRun(el, store, connection, canCancel), close: () => connection.close() };
}

export default () => {
  let mounted: Mounted | undefined;
  const ensure = (model: HostModel) => (mounted ??= mount(model));
  return {
    initialize({ model }: { model: HostModel }) {
      const view = ensure(model); // messages may come before there is any view
      return () => {
        view.close();
        mounted = undefined;
      };
    },
    render({ model, el, signal }: RenderProps) {
      const cleanup = ensure(model).render(el);
      signal?.addEventListener("abort", cleanup, { once: true });
      return cleanup;
    },
  };
};
