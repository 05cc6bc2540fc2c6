// The front-end module of the cache tree.

import { widget } from "./mount";
import { CacheStore, renderCache } from "./tree_view";

export default widget(() => {
  const store = new CacheStore();
  return { store, draw: (el, connection, live) => renderCache(el, store, connection, live) };
});
