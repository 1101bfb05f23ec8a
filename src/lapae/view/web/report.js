"use strict";
// The live latent map: everything it shows is in the page, as sprites of decoded tiles or as numbers.
(() => {
  const data = JSON.parse(document.getElementById("latent").textContent);
  const $ = (id) => document.getElementById(id);
  const { clamp, fit } = latentMap;
  const heat = $("heat"), over = $("over"), side = data.side;
  const state = { x: 0, y: 1, u: 0.5, v: 0.5, labeling: 0, alone: null, nearest: -1 };
  const images = new Map();
  let plane = null, swapped = false, atData = [], shown = [0, 1];

  // A cell of the map as shown, counted from its upper left corner -> index of its tile. With the axes the other way
  // round the stored map is mirrored at its diagonal.
  const cell = (c, r) => swapped ? (side - 1 - c) * side + (side - 1 - r) : r * side + c;
  // The four tiles around a place and their weights: what is shown moves smoothly from tile to tile.
  function around(u, v) {
    const x = clamp(u * side - 0.5, 0, side - 1), y = clamp(v * side - 0.5, 0, side - 1);
    const c = Math.min(Math.floor(x), side - 2), r = Math.min(Math.floor(y), side - 2), a = x - c, b = y - r;
    return [[cell(c, r), (1 - a) * (1 - b)], [cell(c + 1, r), a * (1 - b)], [cell(c, r + 1), (1 - a) * b], [cell(c + 1, r + 1), a * b]];
  }
  const blend = (values, u, v) => around(u, v).reduce((sum, [i, w]) => sum + w * values[i], 0);
  const across = (p) => (p[state.x] - data.axes[state.x].low) / (data.axes[state.x].high - data.axes[state.x].low);
  const down = (p) => (data.axes[state.y].high - p[state.y]) / (data.axes[state.y].high - data.axes[state.y].low);

  function choosePlane() {
    plane = data.planes.find((p) => p.axes.includes(state.x) && p.axes.includes(state.y));
    swapped = plane.axes[0] !== state.x;
    shown = latentMap.range(plane.heat);
    atData = data.points.map((p) => blend(plane.heat, across(p), down(p))).sort((a, b) => a - b);
    if (data.view.kind !== "image") return;
    $("top").textContent = readable(plane.top, 3);
    for (const which of ["mean", "deviation"]) {
      if (images.has(plane[which])) continue;
      const image = new Image();
      image.onload = show;
      image.src = plane[which];
      images.set(plane[which], image);
    }
  }

  function drawMap() {
    const [context, width, height] = fit(heat);
    latentMap.shades(context, width, height, side, (c, r) => plane.heat[cell(c, r)], shown, !data.spread);
    latentMap.dots(context, width, height, data.points, (p) => [across(p), down(p)], data.labelings[state.labeling], state.alone);
    latentMap.axisNames(context, width, height, data.axes[state.x].name, data.axes[state.y].name);
  }

  function drawTile(canvas, image) {
    const [w, h] = plane.tile;
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    if (!image || !image.complete || !image.naturalWidth) return;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.globalCompositeOperation = "source-over";
    context.globalAlpha = 1;
    context.fillStyle = "#000";
    context.fillRect(0, 0, w, h);
    context.globalCompositeOperation = "lighter";
    for (const [i, weight] of around(state.u, state.v)) {
      context.globalAlpha = weight;
      context.drawImage(image, (i % side) * w, Math.floor(i / side) * h, w, h, 0, 0, w, h);
    }
  }

  const showFeatures = data.view.kind === "image" ? null : latentMap.features($("features"), data.view, data.spread);

  function show() {
    if (data.view.kind === "image") {
      drawTile($("mean"), images.get(plane.mean));
      drawTile($("deviation"), images.get(plane.deviation));
    } else {
      const tiles = around(state.u, state.v);
      const of = (which) => (j) => tiles.reduce((sum, [i, w]) => sum + w * plane[which][i][j], 0);
      showFeatures(of("mean"), of("deviation"));
    }
    latentMap.gauge($, blend(plane.heat, state.u, state.v), atData, shown);
    const code = [state.x, state.y].map((a, k) => {
      const axis = data.axes[a], t = k ? 1 - state.v : state.u;
      return `${axis.name} = ${(axis.low + t * (axis.high - axis.low)).toFixed(2)}`;
    });
    const labeling = data.labelings[state.labeling];
    let best = Infinity;
    data.points.forEach((p, i) => {
      const distance = (across(p) - state.u) ** 2 + (down(p) - state.v) ** 2;
      if (distance < best) { best = distance; state.nearest = i; }
    });
    const name = labeling && labeling.names[labeling.values[state.nearest]];
    $("place").textContent = code.join(", ") + (name === undefined ? "" : `. Nearest datum: ${name}`);
    drawOver();
  }

  function drawOver() {
    const [context, width, height] = fit(over), p = data.points[state.nearest];
    latentMap.cross(context, width, height, state.u, state.v);
    if (!p) return;
    context.lineWidth = 1.5;
    latentMap.ring(context, across(p) * width, down(p) * height, 5);
  }

  function move(event) {
    [state.u, state.v] = latentMap.place(over, event);
    show();
  }
  over.addEventListener("pointermove", move);
  over.addEventListener("pointerdown", (event) => { if (event.pointerType === "touch") over.setPointerCapture(event.pointerId); move(event); });
  over.addEventListener("keydown", (event) => {
    const step = latentMap.step(event.key);
    if (!step) return;
    event.preventDefault();
    state.u = clamp(state.u + step[0]);
    state.v = clamp(state.v + step[1]);
    show();
  });

  function makeLegend() {
    latentMap.legend($("legend"), data.labelings[state.labeling], state.alone, (alone) => { state.alone = alone; makeLegend(); drawMap(); });
  }

  function chooseAxes(changed) {
    const x = $("axis-x"), y = $("axis-y");
    if (x.value === y.value) {  // two axes: the other one takes the place of this one before
      (changed === x ? y : x).value = String(changed === x ? state.x : state.y);
    }
    state.x = Number(x.value);
    state.y = Number(y.value);
    choosePlane(); drawMap(); show();
  }
  for (const select of [$("axis-x"), $("axis-y")]) if (select) select.addEventListener("change", () => chooseAxes(select));
  if (data.labelings.length > 1) {
    $("labeling-choice").hidden = false;
    data.labelings.forEach((labeling, i) => $("labeling").append(new Option(labeling.name, String(i))));
    $("labeling").addEventListener("change", (event) => { state.labeling = Number(event.target.value); state.alone = null; makeLegend(); drawMap(); show(); });
  }

  choosePlane();
  // Begin at the datum where the deviation is least, so that the first picture is one the model is sure of.
  const surest = data.points.reduce((best, p, i) => blend(plane.heat, across(p), down(p)) < blend(plane.heat, across(data.points[best]), down(data.points[best])) ? i : best, 0);
  state.u = across(data.points[surest]);
  state.v = down(data.points[surest]);
  makeLegend(); drawMap(); show();
  const again = () => { makeLegend(); drawMap(); show(); };
  window.addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
