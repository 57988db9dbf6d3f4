// @ts-check
// Memory with a limit.

/**
 * Sets an entry of a map that has at most `most` entries: a new one empties a full map, whose entries can all be had again.
 * @template K, V
 * @param {Map<K, V>} map
 * @param {number} most
 * @param {K} key
 * @param {V} value
 */
export function setBounded(map, most, key, value) {
  if (!map.has(key) && map.size >= most) {
    map.clear();
  }
  map.set(key, value);
}
