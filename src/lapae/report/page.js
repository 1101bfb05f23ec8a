"use strict";
// The live latent map: everything it shows is in the page, as sprites of decoded tiles or as numbers.
(() => {
  const data = JSON.parse(document.getElementById("latent").textContent);
  const $ = (id) => document.getElementById(id);
  const heat = $("heat"), over = $("over"), side = data.side;
  const state = { x: 0, y: 1, u: 0.5, v: 0.5, labeling: 0, alone: null, nearest: -1 };
  const images = new Map();
  let plane = null, swapped = false, atData = [], low = 0, high = 1;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (name) => css(name).match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
  const short = (value) => String(Number(value.toPrecision(3)));
  const colour = (value, n) => value < 0 ? css("--c7") : n <= 10 ? css(`--c${value % 10}`) : `hsl(${(value * 137.5) % 360} 60% 52%)`;

  // A cell of the map as shown, counted from its upper left corner -> index of its tile. With the axes the other way
  // round the stored map is mirrored at its diagonal.
  const cell = (c, r) => swapped ? (side - 1 - c) * side + (side - 1 - r) : r * side + c;
  // The four tiles around a place and their weights: what is shown moves smoothly from tile to tile.
  function around(u, v) {
    const x = Math.min(Math.max(u * side - 0.5, 0), side - 1), y = Math.min(Math.max(v * side - 0.5, 0), side - 1);
    const c = Math.min(Math.floor(x), side - 2), r = Math.min(Math.floor(y), side - 2), a = x - c, b = y - r;
    return [[cell(c, r), (1 - a) * (1 - b)], [cell(c + 1, r), a * (1 - b)], [cell(c, r + 1), (1 - a) * b], [cell(c + 1, r + 1), a * b]];
  }
  const blend = (values, u, v) => around(u, v).reduce((sum, [i, w]) => sum + w * values[i], 0);
  const across = (p) => (p[state.x] - data.axes[state.x].low) / (data.axes[state.x].high - data.axes[state.x].low);
  const down = (p) => (data.axes[state.y].high - p[state.y]) / (data.axes[state.y].high - data.axes[state.y].low);

  function choosePlane() {
    plane = data.planes.find((p) => p.axes.includes(state.x) && p.axes.includes(state.y));
    swapped = plane.axes[0] !== state.x;
    const sorted = plane.heat.slice().sort((a, b) => a - b);
    low = sorted[0];
    high = Math.max(sorted[Math.floor(sorted.length * 0.995)], low + 1e-9);
    atData = data.points.map((p) => blend(plane.heat, across(p), down(p))).sort((a, b) => a - b);
    if (data.view.kind !== "image") return;
    for (const which of ["mean", "deviation"]) {
      if (images.has(plane[which])) continue;
      const image = new Image();
      image.onload = show;
      image.src = plane[which];
      images.set(plane[which], image);
    }
  }

  function fit(canvas) {
    const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [context, box.width, box.height];
  }

  function drawMap() {
    const [context, width, height] = fit(heat);
    const stops = [rgb("--heat-0"), rgb("--heat-1"), rgb("--heat-2")];
    const small = document.createElement("canvas");
    small.width = small.height = side;
    const pixels = small.getContext("2d").createImageData(side, side);
    for (let r = 0; r < side; r++) for (let c = 0; c < side; c++) {
      const t = Math.min(Math.max((plane.heat[cell(c, r)] - low) / (high - low), 0), 1) * (data.spread ? 2 : 0);
      const from = stops[Math.min(Math.floor(t), 1)], to = stops[Math.min(Math.floor(t), 1) + 1], f = t - Math.min(Math.floor(t), 1);
      for (let k = 0; k < 3; k++) pixels.data[4 * (r * side + c) + k] = from[k] + (to[k] - from[k]) * f;
      pixels.data[4 * (r * side + c) + 3] = 255;
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, width, height);
    const labeling = data.labelings[state.labeling], n = labeling ? labeling.names.length : 1;
    const colours = labeling ? labeling.names.map((_, i) => colour(i, n)) : [css("--c0")];
    const radius = width < 420 ? 2 : 2.6;
    for (const dimmed of [true, false]) data.points.forEach((p, i) => {
      const value = labeling ? labeling.values[i] : 0, faint = state.alone !== null && value !== state.alone;
      if (faint !== dimmed) return;
      context.globalAlpha = faint ? 0.12 : 0.9;
      context.beginPath();
      context.arc(across(p) * width, down(p) * height, radius, 0, 7);
      context.fillStyle = colours[value] || css("--c7");
      context.fill();
      context.lineWidth = 0.6;
      context.strokeStyle = css("--dot-edge");
      context.stroke();
    });
    context.globalAlpha = 1;
    context.font = "600 13px system-ui, sans-serif";
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = css("--card");
    context.fillStyle = css("--ink");
    for (const [text, align, x, y] of [[`${data.axes[state.x].name} →`, "right", width - 10, height - 11], [`↑ ${data.axes[state.y].name}`, "left", 10, 20]]) {
      context.textAlign = align;
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    }
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

  const bars = [];
  function makeBars() {
    const box = $("features");
    if (data.view.kind === "lines") {
      box.innerHTML = '<svg viewBox="0 0 300 170" role="img" aria-label="decoded values"><polygon class="band"/><polyline class="line-0"/></svg>';
      return;
    }
    for (const feature of data.view.features) {
      const row = document.createElement("div");
      row.className = "feature";
      row.innerHTML = '<span class="name"></span><span class="track"><i></i><b></b></span><span class="value"></span>';
      row.children[0].textContent = row.children[0].title = feature.name;  // text, never markup
      box.append(row);
      bars.push([row.querySelector("i"), row.querySelector("b"), row.children[2]]);
    }
  }

  function showFeatures() {
    const tiles = around(state.u, state.v), features = data.view.features;
    const of = (which, j) => tiles.reduce((sum, [i, w]) => sum + w * plane[which][i][j], 0);
    const place = (j, value) => Math.min(Math.max((value - features[j].low) / Math.max(features[j].high - features[j].low, 1e-12), 0), 1);
    if (data.view.kind === "lines") {
      const step = 300 / Math.max(features.length - 1, 1), y = (j, value) => (165 - 160 * place(j, value)).toFixed(1);
      const line = [], upper = [], lower = [];
      features.forEach((_, j) => {
        const m = of("mean", j), d = of("deviation", j), x = (j * step).toFixed(1);
        line.push(`${x},${y(j, m)}`); upper.push(`${x},${y(j, m + d)}`); lower.unshift(`${x},${y(j, m - d)}`);
      });
      $("features").querySelector("polyline").setAttribute("points", line.join(" "));
      $("features").querySelector("polygon").setAttribute("points", upper.concat(lower).join(" "));
      return;
    }
    bars.forEach(([band, dot, text], j) => {
      const m = of("mean", j), d = of("deviation", j), from = place(j, m - d), to = place(j, m + d);
      band.style.left = `${100 * from}%`;
      band.style.width = `${Math.max(100 * (to - from), 0.5)}%`;
      dot.style.left = `${100 * place(j, m)}%`;
      text.textContent = data.spread ? `${short(m)} ± ${Number(d.toPrecision(2))}` : short(m);
    });
  }

  function show() {
    if (data.view.kind === "image") {
      drawTile($("mean"), images.get(plane.mean));
      drawTile($("deviation"), images.get(plane.deviation));
    } else showFeatures();
    const here = blend(plane.heat, state.u, state.v), at = (value) => 100 * Math.min(Math.max((value - low) / (high - low), 0), 1);
    $("total").textContent = short(here);
    $("needle").style.left = `${at(here)}%`;
    const n = atData.length, quantile = (q) => atData[Math.min(n - 1, Math.floor(q * n))];
    $("data-range").style.left = `${at(quantile(0.05))}%`;
    $("data-range").style.width = `${Math.max(at(quantile(0.95)) - at(quantile(0.05)), 1)}%`;
    const below = atData.filter((value) => value < here).length;
    const times = here / quantile(0.5);
    $("compare").textContent = below === 0 ? "less than at almost all of the data; the line marks where 90 % of them are"
      : below === n ? `more than at any of the ${n} data: ${times.toFixed(1)} times the median`
      : `more than at ${Math.round(100 * below / n)} % of the data; the line marks where 90 % of them are`;
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
    const [context, width, height] = fit(over);
    const x = state.u * width, y = state.v * height, p = data.points[state.nearest];
    context.strokeStyle = css("--cross");
    context.lineWidth = 1;
    context.globalAlpha = 0.35;
    context.beginPath();
    context.moveTo(x, 0); context.lineTo(x, height); context.moveTo(0, y); context.lineTo(width, y);
    context.stroke();
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 7, 0, 7);
    context.stroke();
    if (!p) return;
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(across(p) * width, down(p) * height, 5, 0, 7);
    context.stroke();
  }

  function move(event) {
    const box = over.getBoundingClientRect();
    state.u = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    state.v = Math.min(Math.max((event.clientY - box.top) / box.height, 0), 1);
    show();
  }
  over.addEventListener("pointermove", move);
  over.addEventListener("pointerdown", (event) => { if (event.pointerType === "touch") over.setPointerCapture(event.pointerId); move(event); });
  over.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    state.u = Math.min(Math.max(state.u + step[0] / 50, 0), 1);
    state.v = Math.min(Math.max(state.v + step[1] / 50, 0), 1);
    show();
  });

  function makeLegend() {
    const box = $("legend"), labeling = data.labelings[state.labeling];
    box.replaceChildren();
    if (!labeling) return;
    const present = new Set(labeling.values);
    labeling.names.forEach((name, value) => {
      if (!present.has(value)) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.style.setProperty("--dot", colour(value, labeling.names.length));
      button.setAttribute("aria-pressed", String(state.alone === value));
      button.addEventListener("click", () => { state.alone = state.alone === value ? null : value; makeLegend(); drawMap(); });
      box.append(button);
    });
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

  makeBars();
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
