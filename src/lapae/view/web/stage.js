"use strict";
// The stage of a latent map: axes, zoom and pan, the place and the sample under the pointer, classes. What is decoded at
// a place is the page's: `page` has moved(at), over(context, project), and where data can be picked picked(i) and
// hovered(i), an element about a sample; pressed(at, gap) is told of every press, and returns whether it was meant.
function startStage($, data, page) {
  const { clamp, fit } = latentMap, over = $("over"), heat = $("heat"), MOST_ZOOM = 40;
  const state = { x: 0, y: 1, u: 0.5, v: 0.5, labeling: 0, alone: null, nearest: -1 };
  const view = { left: 0, top: 0, zoom: 1 };
  let value = null, side = data.side, logs = false, shown = [0, 1], atData = [];
  const axis = (k) => data.axes[k], part = (k, t) => (t - axis(k).low) / (axis(k).high - axis(k).low);
  // Places on the whole map run from 0 to 1, from its upper left corner; those in sight from 0 to 1 as well.
  const whole = (p) => [part(state.x, p[state.x]), 1 - part(state.y, p[state.y])];
  const sight = ([u, v]) => [(u - view.left) * view.zoom, (v - view.top) * view.zoom];
  const at = (u, v) => [axis(state.x).low + u * (axis(state.x).high - axis(state.x).low), axis(state.y).high - v * (axis(state.y).high - axis(state.y).low)];
  const cell = (u, v) => value(Math.round(clamp(u * side - 0.5, 0, side - 1)), Math.round(clamp(v * side - 0.5, 0, side - 1)));

  function draw() {
    const [context, width, height] = fit(heat);
    latentMap.shades(context, width, height, side, value || (() => 0), shown, !value || !(data.spread || logs), view);
    latentMap.dots(context, width, height, data.points, (p) => sight(whole(p)), data.labelings[state.labeling], state.alone);
    latentMap.axisNames(context, width, height, axis(state.x).name, axis(state.y).name);
    drawOver();
  }

  function drawOver() {
    const [context, width, height] = fit(over), p = data.points[state.nearest];
    const project = (q) => { const [u, v] = sight(whole(q)); return [u * width, v * height]; };
    latentMap.cross(context, width, height, ...sight([state.u, state.v]));
    if (p) { context.lineWidth = 1.5; latentMap.ring(context, ...project(p), 5); }
    page.over(context, project);
  }

  // What is shaded in the cells of the map, a function of column and row; null while it is not known. Standard
  // deviations, or logarithms, of which the map may have fewer.
  function shade(values, cells = data.side, areLogs = false) {
    value = values;
    side = cells;
    logs = areLogs;
    if (value) {
      const all = [];
      for (let r = 0; r < side; r++) for (let c = 0; c < side; c++) all.push(value(c, r));
      shown = latentMap.range(all, logs);
      atData = data.points.map((p) => cell(...whole(p))).sort((a, b) => a - b);
    }
    draw();
  }

  function move() {
    let best = Infinity;
    data.points.forEach((p, i) => {
      const [u, v] = whole(p), distance = (u - state.u) ** 2 + (v - state.v) ** 2;
      if (distance < best) { best = distance; state.nearest = i; }
    });
    const labeling = data.labelings[state.labeling], name = labeling && labeling.names[labeling.values[state.nearest]];
    const place = at(state.u, state.v);
    $("place").textContent = `${axis(state.x).name} = ${place[0].toFixed(2)}, ${axis(state.y).name} = ${place[1].toFixed(2)}` + (name === undefined ? "" : `. Nearest sample: ${name}`);
    drawOver();
    page.moved(place);
  }

  function gauge(total) {
    if (value && logs) latentMap.gauge($, cell(state.u, state.v), atData, shown, true);
    else if (data.spread && atData.length) latentMap.gauge($, total, atData, shown);
  }

  // How far the pointer is from the nearest sample, in pixels.
  function gap() {
    const box = over.getBoundingClientRect(), p = data.points[state.nearest];
    if (!p) return Infinity;
    const [a, b] = sight(whole(p)), [c, d] = sight([state.u, state.v]);
    return Math.hypot((a - c) * box.width, (b - d) * box.height);
  }

  const pressedAt = () => page.pressed && page.pressed(at(state.u, state.v), gap());

  function tell(event) {
    const box = $("hover");
    if (!box || !page.hovered) return;
    const near = event && event.pointerType !== "touch" && gap() < 14;
    box.hidden = !near;
    if (!near) return;
    box.replaceChildren(page.hovered(state.nearest));
    const [u, v] = latentMap.place(over, event);
    box.style.left = `${100 * u}%`;
    box.style.top = `${100 * v}%`;
    box.classList.toggle("left", u > 0.6);
    box.classList.toggle("up", v > 0.6);
  }

  function look(event) {
    const [u, v] = latentMap.place(over, event);
    state.u = clamp(view.left + u / view.zoom);
    state.v = clamp(view.top + v / view.zoom);
    move();
    tell(event);
  }

  function keepInside() {
    view.left = clamp(view.left, 0, 1 - 1 / view.zoom);
    view.top = clamp(view.top, 0, 1 - 1 / view.zoom);
    $("zoom-reset").hidden = view.zoom === 1;
    draw();
  }

  // Zoom about a place in sight, from 0 to 1.
  function zoom(times, u = 0.5, v = 0.5) {
    const before = view.zoom;
    view.zoom = clamp(before * times, 1, MOST_ZOOM);
    view.left += u / before - u / view.zoom;
    view.top += v / before - v / view.zoom;
    keepInside();
  }

  let pressed = null, dragging = false;
  over.addEventListener("pointermove", (event) => {
    if (pressed && view.zoom > 1 && (dragging || Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > 6)) {
      const box = over.getBoundingClientRect();
      dragging = true;
      view.left = pressed.left - (event.clientX - pressed.x) / box.width / view.zoom;
      view.top = pressed.top - (event.clientY - pressed.y) / box.height / view.zoom;
      tell(null);
      return keepInside();
    }
    look(event);
  });
  over.addEventListener("pointerdown", (event) => {
    if (event.isTrusted) over.setPointerCapture(event.pointerId);
    pressed = { x: event.clientX, y: event.clientY, left: view.left, top: view.top };
    dragging = false;
    look(event);
  });
  over.addEventListener("pointerup", (event) => {
    const still = pressed && !dragging && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < 6;
    pressed = null;
    if (still && !pressedAt() && gap() < 16 && page.picked) page.picked(state.nearest);
  });
  over.addEventListener("pointerleave", () => tell(null));
  over.addEventListener("wheel", (event) => { event.preventDefault(); zoom(1.0015 ** -event.deltaY, ...latentMap.place(over, event)); look(event); }, { passive: false });
  over.addEventListener("keydown", (event) => {
    const step = latentMap.step(event.key);
    if (event.key === "Enter" && !pressedAt() && page.picked) page.picked(state.nearest);
    if ("+-0".includes(event.key)) zoom({ "+": 1.5, "-": 1 / 1.5, 0: 1e-9 }[event.key], ...sight([state.u, state.v]));
    if (!step) return;
    event.preventDefault();
    state.u = clamp(state.u + step[0] / view.zoom);
    state.v = clamp(state.v + step[1] / view.zoom);
    move();
  });
  $("zoom-in").addEventListener("click", () => zoom(1.5));
  $("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
  $("zoom-reset").addEventListener("click", () => zoom(1e-9));

  function legend() {
    latentMap.legend($("legend"), data.labelings[state.labeling], state.alone, (alone) => { state.alone = alone; legend(); draw(); });
  }
  if (data.share) {
    document.querySelectorAll(".many").forEach((label) => { label.hidden = false; });
    const selects = [$("axis-x"), $("axis-y")];
    selects.forEach((select, which) => {
      data.axes.forEach(({ name }, k) => select.append(new Option(`${name} (${(100 * data.share[k]).toFixed(0)} %)`, String(k), k === which, k === which)));
      select.addEventListener("change", () => {
        // two axes: the other one takes the place of this one before
        if (selects[0].value === selects[1].value) selects[1 - which].value = String(which ? state.y : state.x);
        [state.x, state.y] = selects.map((s) => Number(s.value));
        page.turned();
      });
    });
  }
  if (data.labelings.length > 1) {
    $("labeling-choice").hidden = false;
    data.labelings.forEach((labeling, i) => $("labeling").append(new Option(labeling.name, String(i))));
    $("labeling").addEventListener("change", (event) => { state.labeling = Number(event.target.value); state.alone = null; legend(); draw(); move(); });
  }
  const again = () => { legend(); draw(); };
  window.addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  legend();
  return {
    state, view, draw, drawOver, shade, move, gauge, whole,
    axes: () => [state.x, state.y],
    go(p) { [state.u, state.v] = whole(p).map((t) => clamp(t)); move(); },
  };
}
