"use strict";
// The live latent map of the report: everything it shows is in the page, as sprites of decoded tiles or as numbers.
(() => {
  const data = JSON.parse(document.getElementById("latent").textContent);
  const $ = (id) => document.getElementById(id);
  const { clamp } = latentMap, side = data.side, image = data.view.kind === "image";
  const images = new Map();
  let plane = null, swapped = false;

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

  function choosePlane() {
    const axes = stage.axes();
    plane = data.planes.find((p) => axes.every((axis) => p.axes.includes(axis)));
    swapped = plane.axes[0] !== axes[0];
    stage.shade((c, r) => plane.heat[cell(c, r)]);
    if (!image) return;
    $("top").textContent = readable(plane.top, 3);
    for (const which of ["mean", "deviation"]) {
      if (images.has(plane[which])) continue;
      const sheet = new Image();
      sheet.onload = show;
      sheet.src = plane[which];
      images.set(plane[which], sheet);
    }
  }

  function drawTile(canvas, sheet) {
    const [w, h] = plane.tile;
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    if (!sheet || !sheet.complete || !sheet.naturalWidth) return;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.globalCompositeOperation = "source-over";
    context.globalAlpha = 1;
    context.fillStyle = "#000";
    context.fillRect(0, 0, w, h);
    context.globalCompositeOperation = "lighter";
    for (const [i, weight] of around(stage.state.u, stage.state.v)) {
      context.globalAlpha = weight;
      context.drawImage(sheet, (i % side) * w, Math.floor(i / side) * h, w, h, 0, 0, w, h);
    }
  }

  const showFeatures = image ? null : latentMap.features($("features"), data.view, data.spread);
  function show() {
    const { u, v } = stage.state;
    if (image) {
      drawTile($("mean"), images.get(plane.mean));
      drawTile($("deviation"), images.get(plane.deviation));
    } else {
      const tiles = around(u, v), of = (which) => (j) => tiles.reduce((sum, [i, w]) => sum + w * plane[which][i][j], 0);
      showFeatures(of("mean"), of("deviation"));
    }
    stage.gauge(blend(plane.heat, u, v));
  }

  const stage = startStage($, data, { moved: () => { if (plane) show(); }, over: () => {}, turned: () => { choosePlane(); stage.move(); } });
  choosePlane();
  // Begin at the sample where the deviation is least, so that the first picture is one the model is sure of.
  const doubt = (p) => blend(plane.heat, ...stage.whole(p));
  stage.go(data.points.reduce((best, p) => doubt(p) < doubt(best) ? p : best));
})();
