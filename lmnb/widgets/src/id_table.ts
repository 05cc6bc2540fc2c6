// Places of ids in a list. Ids are given out in order, so a table over their range mostly does; building it takes a
// hundredth of the time of a `Map`.

const SPARSEST = 64; // places of the table for each id

export class IdTable {
  private readonly _least: number;
  private readonly _table: Int32Array | null;
  private readonly _map = new Map<number, number>();

  constructor(ids: ArrayLike<number>) {
    let [least, most] = [Infinity, -Infinity];
    for (let place = 0; place < ids.length; place++) {
      const id = ids[place] as number;
      if (id < least) least = id;
      if (id > most) most = id;
    }
    this._least = least;
    const range = ids.length ? most - least + 1 : 0;
    this._table = range <= SPARSEST * ids.length ? new Int32Array(range).fill(-1) : null;
    for (let place = 0; place < ids.length; place++) {
      if (this._table) this._table[(ids[place] as number) - least] = place;
      else this._map.set(ids[place] as number, place);
    }
  }

  /** The place of `id`, or -1. */
  get(id: number): number {
    return (this._table ? this._table[id - this._least] : this._map.get(id)) ?? -1;
  }
}
