"use strict";
// The map: moving over it asks the server what is decoded there, one question at a time, the latest place first.
const $ = (id) => document.getElementById(id);

async function ask(question, body) {
  const upload = body instanceof Blob;
  const response = await fetch(`api/${question}`, body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": upload ? "application/octet-stream" : "application/json" },
    body: upload ? body : JSON.stringify(body),
  }).catch(() => { throw new Error("The explorer does not answer: has it ended?"); });
  const found = await response.json().catch(() => ({ error: `The explorer answered ${response.status}.` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

function say(text) {
  $("message").hidden = !text;
  $("message").textContent = text || "";
}

// One question in flight: what is asked meanwhile waits, and only the last of it is asked.
function latest(question, show) {
  let busy = false, waiting = null;
  return async function go(...asked) {
    waiting = asked;
    if (busy) return;
    busy = true;
    while (waiting) {
      const now = waiting;
      waiting = null;
      try { const found = await question(...now); if (found) show(found, ...now); } catch (error) { say(error.message); }
    }
    busy = false;
  };
}

const unpack = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Bytes of pixels on a canvas of their size; `colours` paints amounts on the scale of deviations.
function paint(canvas, picture, colours) {
  const { w, h, c } = picture, bytes = unpack(picture.data);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d"), image = context.createImageData(w, h);
  for (let i = 0; i < w * h; i++) {
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = colours ? colours[3 * bytes[i] + k] : bytes[c === 1 ? i : 3 * i + k];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function paintScale(canvas, colours) {
  const bytes = String.fromCharCode(...Array.from({ length: 64 }, (_, i) => 4 * i));
  paint(canvas, { w: 64, h: 1, c: 1, data: btoa(bytes) }, colours);
}

function startMap(about) {
  const { clamp, fit, css } = latentMap, over = $("over"), side = about.side, image = about.view.kind === "image";
  const state = { x: 0, y: 1, u: 0.5, v: 0.5, labeling: 0, alone: null, nearest: -1, heat: null, datum: null, completions: [] };
  const colours = unpack(about.palette);
  let shown = [0, 1], atData = [];
  const axis = (k) => about.axes[k];
  const across = (p) => (p[state.x] - axis(state.x).low) / (axis(state.x).high - axis(state.x).low);
  const down = (p) => (axis(state.y).high - p[state.y]) / (axis(state.y).high - axis(state.y).low);
  const value = (k, t) => axis(k).low + t * (axis(k).high - axis(k).low);
  const anchor = () => state.datum && $("anchor").value === "datum" ? state.datum.code : null;
  const showFeatures = image ? null : latentMap.features($("features"), about.view, about.spread);

  function drawMap() {
    const [context, width, height] = fit($("heat"));
    const heat = state.heat || new Array(side * side).fill(0);
    latentMap.shades(context, width, height, side, (c, r) => heat[r * side + c], shown, !about.spread || !state.heat);
    latentMap.dots(context, width, height, about.points, (p) => [across(p), down(p)], about.labelings[state.labeling], state.alone);
    latentMap.axisNames(context, width, height, axis(state.x).name, axis(state.y).name);
  }

  // An ellipse of s standard deviations, through the Cholesky factor of the covariance along the two axes.
  function ellipse(context, width, height, center, covariance, s) {
    const [a, b, d] = [covariance[state.x][state.x], covariance[state.x][state.y], covariance[state.y][state.y]];
    const l = Math.sqrt(Math.max(a, 0)), m = l ? b / l : 0, n = Math.sqrt(Math.max(d - m * m, 0));
    context.beginPath();
    for (let i = 0; i <= 64; i++) {
      const t = i / 64 * 2 * Math.PI, p = [];
      p[state.x] = center[state.x] + s * l * Math.cos(t);
      p[state.y] = center[state.y] + s * (m * Math.cos(t) + n * Math.sin(t));
      context[i ? "lineTo" : "moveTo"](across(p) * width, down(p) * height);
    }
    context.stroke();
  }

  // How many times larger than it is an ellipse is drawn, to be seen at all.
  function magnified(covariance) {
    const box = over.getBoundingClientRect();
    const pixels = Math.max(...[[state.x, box.width], [state.y, box.height]].map(([k, size]) =>
      2 * Math.sqrt(Math.max(covariance[k][k], 0)) / (axis(k).high - axis(k).low) * size));
    return [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((times) => times * pixels >= 12) || 1000;
  }

  function drawOver() {
    const [context, width, height] = fit(over), p = about.points[state.nearest], datum = state.datum;
    latentMap.cross(context, width, height, state.u, state.v);
    if (p && about.index.length) { context.lineWidth = 1.5; latentMap.ring(context, across(p) * width, down(p) * height, 5); }
    context.fillStyle = css("--c1");
    for (const q of state.completions) {
      const x = across(q) * width, y = down(q) * height;
      context.beginPath();
      context.moveTo(x, y - 6); context.lineTo(x + 5, y); context.lineTo(x, y + 6); context.lineTo(x - 5, y);
      context.fill();
      context.lineWidth = 1; context.strokeStyle = css("--dot-edge");
      context.closePath(); context.stroke();
    }
    if (!datum) return;
    context.strokeStyle = context.fillStyle = css("--accent");
    if (datum.covariance) {
      const times = magnified(datum.covariance);
      context.lineWidth = 2;
      context.setLineDash(times > 1 ? [5, 4] : []);
      for (const s of [1, 2]) ellipse(context, width, height, datum.center, datum.covariance, s * times);
      context.setLineDash([]);
    }
    context.beginPath();
    context.arc(across(datum.at) * width, down(datum.at) * height, 4.5, 0, 7);
    context.fill();
    context.lineWidth = 1.5; context.strokeStyle = css("--dot-edge"); context.stroke();
  }

  const blend = (p) => {
    const x = clamp(across(p) * side - 0.5, 0, side - 1), y = clamp(down(p) * side - 0.5, 0, side - 1);
    return state.heat[Math.round(y) * side + Math.round(x)];
  };
  const warm = latest(() => ask("heat", { axes: [state.x, state.y], anchor: anchor() }), ({ heat }) => {
    state.heat = heat;
    shown = latentMap.range(heat);
    atData = about.points.map(blend).sort((a, b) => a - b);
    drawMap();
    move();
  });

  const decode = latest((at) => ask("place", { axes: [state.x, state.y], at, anchor: anchor() }), (found) => {
    if (image) {
      paint($("mean"), found.mean);
      paint($("deviation"), found.deviation, colours);
    } else showFeatures((j) => found.mean[j], (j) => found.deviation[j]);
    if (about.spread && atData.length) latentMap.gauge($, found.total, atData, shown);
    document.body.dataset.moves = Number(document.body.dataset.moves || 0) + 1;
  });

  function move() {
    const at = [value(state.x, state.u), value(state.y, 1 - state.v)];
    let best = Infinity;
    about.points.forEach((p, i) => {
      const distance = (across(p) - state.u) ** 2 + (down(p) - state.v) ** 2;
      if (distance < best) { best = distance; state.nearest = i; }
    });
    const labeling = about.labelings[state.labeling], name = labeling && labeling.names[labeling.values[state.nearest]];
    $("place").textContent = `${axis(state.x).name} = ${at[0].toFixed(2)}, ${axis(state.y).name} = ${at[1].toFixed(2)}`
      + (name === undefined ? "" : `. Nearest datum: ${name}`);
    drawOver();
    decode(at);
  }

  let pressed = null;
  over.addEventListener("pointermove", (event) => { [state.u, state.v] = latentMap.place(over, event); move(); });
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") over.setPointerCapture(event.pointerId);
    pressed = [event.clientX, event.clientY];
    [state.u, state.v] = latentMap.place(over, event);
    move();
  });
  over.addEventListener("pointerup", (event) => {
    const still = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 6;
    const box = over.getBoundingClientRect(), p = about.points[state.nearest];
    pressed = null;
    if (still && p && Math.hypot((across(p) - state.u) * box.width, (down(p) - state.v) * box.height) < 16) pick();
  });
  over.addEventListener("keydown", (event) => {
    const step = latentMap.step(event.key);
    if (event.key === "Enter") pick();
    if (!step) return;
    event.preventDefault();
    state.u = clamp(state.u + step[0]);
    state.v = clamp(state.v + step[1]);
    move();
  });
  function pick() {
    if (about.index.length) api.pick("train", about.index[state.nearest]);
  }

  function legend() {
    latentMap.legend($("legend"), about.labelings[state.labeling], state.alone, (alone) => { state.alone = alone; legend(); drawMap(); });
  }
  function chooseAxes(changed) {
    const x = $("axis-x"), y = $("axis-y");
    if (x.value === y.value) (changed === x ? y : x).value = String(changed === x ? state.x : state.y);
    state.x = Number(x.value);
    state.y = Number(y.value);
    again();
  }
  function again() {
    state.heat = null;
    drawMap(); move(); warm();
  }
  if (about.latent_dim > 2) {
    document.querySelectorAll(".many").forEach((label) => { label.hidden = false; });
    for (const [select, chosen] of [[$("axis-x"), 0], [$("axis-y"), 1]]) {
      about.axes.forEach(({ name }, k) => select.append(new Option(`${name} (${(100 * about.share[k]).toFixed(0)} %)`, String(k), k === chosen, k === chosen)));
      select.addEventListener("change", () => chooseAxes(select));
    }
    $("anchor").addEventListener("change", again);
  }
  if (about.labelings.length > 1) {
    $("labeling-choice").hidden = false;
    about.labelings.forEach((labeling, i) => $("labeling").append(new Option(labeling.name, String(i))));
    $("labeling").addEventListener("change", (event) => { state.labeling = Number(event.target.value); state.alone = null; legend(); drawMap(); move(); });
  }
  $("here").hidden = !image;
  $("features").hidden = image;
  $("deviation-figure").hidden = $("shade").hidden = document.querySelector(".gauge").hidden = !about.spread;
  $("top").textContent = readable(about.top, 3);
  paintScale($("scale"), colours);
  const redraw = () => { legend(); drawMap(); drawOver(); };
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  const api = {
    colours, magnified,
    pick: () => {},
    // A datum on the map: its dot, its ellipse, and the codes of its completions.
    show(datum) {
      const moved = datum !== state.datum && anchor();
      state.datum = datum;
      $("anchor").querySelector("[value=datum]").disabled = !datum;
      if (moved) again(); else drawOver();
    },
    complete(places) { state.completions = places; drawOver(); },
  };
  // Begin in the middle of the data.
  const middle = (k) => about.points.map((p) => p[k]).sort((a, b) => a - b)[Math.floor(about.points.length / 2)];
  const start = [];
  start[state.x] = middle(state.x); start[state.y] = middle(state.y);
  state.u = clamp(across(start)); state.v = clamp(down(start));
  redraw(); move(); warm();
  return api;
}

ask("opening").then((about) => {
  document.title = `${about.name} – lapae explore`;
  $("name").textContent = about.name;
  $("data").textContent = `${about.data},`;
  for (const key of ["method", "summary", "uncertainty", "version"]) $(key).textContent = about[key];
  if (about.no_data) {
    $("no-data").hidden = false;
    $("no-data").textContent = `There are no data to pick from: ${about.no_data}. The dots are data that the model generated.`;
    $("dots").textContent = "a generated datum";
    $("starts").textContent = "generated";
    $("should").hidden = true;
    document.querySelector(".pick").hidden = true;
  }
  const map = startMap(about);
  startDatum(about, map);
}).catch((error) => { $("no-data").hidden = false; $("no-data").textContent = error.message; });
