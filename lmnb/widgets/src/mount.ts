// What anywidget loads: a module whose default export makes a widget's two hooks. State lives in the closure of that
// function, because anywidget hands `initialize` and `render` different model proxies, and caches the module.
// Private members of all classes begin with `_`: the build shortens these names.

import { Connection, type Reducer } from "./connection";
import type { HostModel, RenderProps } from "./protocol";

/** A view: the store that its connection keeps up to date, and what draws it. */
export interface View<S, E> {
  store: Reducer<S, E>;
  /** `live`: there is a kernel to talk to; a page that stands alone has none. Returns what takes everything back. */
  draw(el: HTMLElement, connection: Connection<S, E>, live: boolean, model: HostModel): () => void;
}

/** What hides the pictures of a view, and the output that JupyterLab shows each in, as long as it is in the page. */
function hide(picture: string): HTMLStyleElement | undefined {
  if (!picture) return undefined;
  const style = document.createElement("style");
  style.textContent = `.${picture}, .jp-OutputArea-child:has(> .jp-OutputArea-output > .${picture}) { display: none !important; }`;
  return style;
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
        const undraw = view.draw(el, connection, model.get("alone") !== true, model);
        const veil = hide(String(model.get("picture") || ""));
        if (veil) el.append(veil);
        const cleanup = () => {
          veil?.remove();
          undraw();
        };
        signal?.addEventListener("abort", cleanup, { once: true });
        return cleanup;
      },
    };
  };
}
