// The view of one run: its head, its transcript and its variables, kept in step with a connection.

import { type Connection, GONE, type Reducer } from "./connection";
import { frameScheduler, h, OWN_KEYS, setText, stickToEnd } from "./dom";
import type { Parting, Reply, RunEvent } from "./protocol";
import { BranchView, laneButton, newUi } from "./run_branch";
import { HeadView } from "./run_head";
import { RunModel, type RunState } from "./run_model";
import { TokenStrip } from "./run_strip";
import { colourMenu } from "./run_tokens";
import { VarsView } from "./run_vars";

const REVEAL_FOR = 5000; // milliseconds

/** A run's model and what readers opened in it; shared by all views of one widget. */
export class RunStore implements Reducer<RunState, RunEvent> {
  model = new RunModel();
  readonly ui = newUi();

  reset(state: RunState): void {
    this.model = new RunModel(state);
  }

  lost(): void {
    this.model.stop();
  }

  apply(events: RunEvent[]): void {
    for (const event of events) this.model.apply(event);
  }
}

/** Draw a run into `el`. Returns what takes everything back. */
export function renderRun(
  el: HTMLElement,
  store: RunStore,
  connection: Connection<RunState, RunEvent>,
  canCancel: boolean,
  canPart: boolean,
): () => void {
  const root = h("div", { class: `lmnb lmnb-run${canPart ? " lmnb-parts" : ""}` });
  store.ui.fetch = canCancel ? (branch, item) => connection.post({ type: "whole", branch, item }) : null;
  el.append(root);
  let redraw = () => undefined as void;
  let strip: TokenStrip | undefined;
  const actions = {
    ask: (place: Parting) => connection.request({ type: "ask", ...place }, (why) => strip?.answer({ type: "refused", why, ...place })),
    part: (place: Parting, what: object) => connection.request({ type: "part", ...place, ...what }, (why) => strip?.answer({ type: "refused", why, ...place })),
  };

  const build = () => {
    root.replaceChildren();
    root.classList.toggle("lmnb-show-template", store.ui.markup);
    const head = new HeadView({
      cancel: () => connection.request({ type: "cancel" }, () => head.offerCancel()),
      markup: (shown) => {
        store.ui.markup = shown;
        root.classList.toggle("lmnb-show-template", shown);
      },
      markupShown: store.ui.markup,
      canCancel,
      menu: colourMenu(store.ui.colour, (colour) => {
        store.ui.colour = colour;
        build();
        root.querySelector("select")?.focus({ preventScroll: true });
      }),
    });
    const body = h("div", { ...OWN_KEYS, class: "lmnb-body", role: "region", "aria-label": "Transcript", tabindex: 0 });
    const lost = h("p", { class: "lmnb-lost", role: "status" });
    const error = h("pre", { class: "lmnb-error", role: "alert" });
    const vars = new VarsView(store.ui);
    const transcript = new BranchView(store.model, 0, store.ui);
    // Branches side by side are read from their beginning on: one that grows does not take the others out of sight.
    const stick = stickToEnd(body, () => {
      const last = transcript.el.lastElementChild;
      return last?.querySelector(":scope > .lmnb-lanes > .lmnb-lane + .lmnb-lane") ? last : null;
    });
    body.append(transcript.el);
    strip = new TokenStrip(body, store.ui.colour, () => hasDetails(store.model), canPart ? actions : null);
    root.append(head.el, head.bar, body, strip.el, lost, error, vars.el);
    redraw = () => {
      const state = store.model.state;
      root.dataset["status"] = state.status;
      root.classList.toggle("lmnb-rerun", state.rerun);
      head.update(state);
      stick.before();
      if (store.model.root) transcript.update();
      stick.after();
      lost.hidden = !connection.lost || !store.model.cut;
      if (!lost.hidden) setText(lost, GONE);
      error.hidden = !state.error;
      if (state.error) setText(error, `✕ ${state.error}`);
      vars.update(state);
      const { reveal } = store.ui;
      // For a while: when the run ends, JupyterLab draws the view anew, and the focus would be lost.
      if (reveal && performance.now() < reveal.until && root.isConnected && document.activeElement === document.body) {
        laneButton(root, reveal.branch)?.focus();
      }
      if (reveal && performance.now() < reveal.until) showFailure(laneButton(root, reveal.branch));
    };
    redraw();
    // A run that is over is read from its beginning, one that goes on is followed.
    if (store.ui.scrollTop !== null) body.scrollTop = store.ui.scrollTop;
    else if (store.model.state.status !== "running") body.scrollTop = 0;
    body.addEventListener("scroll", () => {
      store.ui.scrollTop = body.scrollTop;
    });
  };

  const frames = frameScheduler(() => redraw());
  const unsubscribe = connection.subscribe((change) => {
    if (change === "reset") {
      frames.cancel();
      build();
    } else frames.request();
  });
  const answer = (reply: Reply) => {
    if (reply.type === "parted") store.ui.reveal = { branch: reply.opened, until: performance.now() + REVEAL_FOR };
    strip?.answer(reply);
    frames.request();
  };
  connection.replies.add(answer);
  build();
  if (store.ui.reveal) frames.request(); // once this stands in the page
  return () => {
    connection.replies.delete(answer);
    unsubscribe();
    frames.cancel();
    root.remove();
  };
}

/** The reason why a branch failed comes into view, if its reader has not gone elsewhere. */
function showFailure(button: HTMLElement | null): void {
  const lane = button?.closest(".lmnb-lane");
  if (!lane?.contains(document.activeElement)) return;
  lane.querySelector(":scope > .lmnb-lane-body > .lmnb-branch > .lmnb-error")?.scrollIntoView?.({ block: "nearest" });
}

/** Whether log-probabilities were asked for, in any generation that has tokens. */
function hasDetails(model: RunModel): boolean {
  return model.state.branches.some((branch) => branch.items.some((item) => item.type === "gen" && item.parts.some((part) => (part[4]?.length ?? 0) > 0)));
}
