// What anywidget loads: a module whose default export makes a widget's two hooks. State lives in the closure of that
// function, because anywidget hands `initialize` and `render` different model proxies, and caches the module.
// Private members of all classes begin with `_`: the build shortens these names.

import { Connection, type Reducer } from "./connection";
import type { HostModel, RenderProps } from "./protocol";

/** A view: the store that its connection keeps up to date, and what draws it. */
export interface View<S, E> {
  store: Reducer<S, E>;
  /** `live`: there is a kernel to talk to; a page that stands alone has none. Returns what takes everything back. */
  draw(el: HTMLElement, connection: Connection<S, E>, live: boolean): () => void;
}

/** The module's default export, for one kind of view. */
export function widget<S, E>(make: () => View<S, E>) {
  return () => {
    let mounted: { view: View<S, E>; connection: Connection<S, E> } | undefined;
    const ensure = (model: HostModel) => {
      if (!mounted) {
        const view = make();
        mounted = { view, connection: new Connection(model, view.store) };
      }
      return mounted;
    };
    return {
      initialize({ model }: { model: HostModel }) {
        const { connection } = ensure(model); // messages may come before there is any view
        return () => {
          connection.close();
          mounted = undefined;
        };
      },
      render({ model, el, signal }: RenderProps) {
        const { view, connection } = ensure(model);
        const cleanup = view.draw(el, connection, model.get("alone") !== true);
        signal?.addEventListener("abort", cleanup, { once: true });
        return cleanup;
      },
    };
  };
}
