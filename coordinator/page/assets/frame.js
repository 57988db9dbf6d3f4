// @ts-check
// The parts of the frame that the views call.

/** @type {() => void} */
let draw = () => {};

/** Sets what a redraw does. @param {() => void} redraw */
export function onRedraw(redraw) {
  draw = redraw;
}

/** Redraws the view soon, for one whose work goes on behind it. */
export function redraw() {
  draw();
}

/**
 * The action of each button with `data-action`; its argument is the button's `data-of`, and the value of the
 * field that `data-field` names.
 * @type {Map<string, (of: string, value: string) => void>}
 */
export const actions = new Map();
