// The front-end module of a run's view.

import { widget } from "./mount";
import { renderRun, RunStore } from "./run_view";

export default widget(() => {
  const store = new RunStore();
  return { store, draw: (el, connection, live, model) => renderRun(el, store, connection, live, live && model.get("saved") !== true) };
});
