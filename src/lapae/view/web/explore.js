"use strict";
// The explorer: moving over the map asks the server what is decoded there, one question at a time, the latest place first.
const $ = (id) => document.getElementById(id);

async function ask(question, body) {
  const upload = body instanceof Blob;
  const response = await fetch(`api/${question}`, body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": upload ? "application/octet-stream" : "application/json" },
    body: upload ? body : JSON.stringify(body),
  }).catch(() => { throw new Error("The explorer does not answer: is it still running?"); });
  const found = await response.json().catch(() => ({ error: `The explorer answered ${response.status}.` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

function say(text) {
  $("message").hidden = !text;
  $("message").textContent = text || "";
}

// One question in flight: later ones wait, and only the latest of them is asked.
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

// Bytes of pixels on a canvas of their size; `colours` paints amounts with the palette of standard deviations.
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

function startMap(about) {
  const { css } = latentMap, image = about.view.kind === "image", over = $("over");
  const shown = { sample: null, completions: [] };
  const colours = unpack(about.palette);
  const anchor = () => shown.sample && $("anchor").value === "sample" ? shown.sample.code : null;
  const showFeatures = image ? null : latentMap.features($("features"), about.view, about.spread);

  // An ellipse of s standard deviations, through the Cholesky factor of the covariance along the two axes.
  function ellipse(context, project, center, covariance, s) {
    const [x, y] = stage.axes(), [a, b, d] = [covariance[x][x], covariance[x][y], covariance[y][y]];
    const l = Math.sqrt(Math.max(a, 0)), m = l ? b / l : 0, n = Math.sqrt(Math.max(d - m * m, 0));
    context.beginPath();
    for (let i = 0; i <= 64; i++) {
      const t = i / 64 * 2 * Math.PI, p = [];
      p[x] = center[x] + s * l * Math.cos(t);
      p[y] = center[y] + s * (m * Math.cos(t) + n * Math.sin(t));
      context[i ? "lineTo" : "moveTo"](...project(p));
    }
    context.stroke();
  }

  // Factor by which an ellipse is enlarged so that it can be seen at all.
  function magnified(covariance) {
    const box = over.getBoundingClientRect(), [x, y] = stage.axes();
    const pixels = Math.max(...[[x, box.width], [y, box.height]].map(([k, size]) =>
      2 * Math.sqrt(Math.max(covariance[k][k], 0)) / (about.axes[k].high - about.axes[k].low) * size * stage.view.zoom));
    return [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((times) => times * pixels >= 12) || 1000;
  }

  // The path, the codes of completions, and of the sample with its ellipses.
  function draw(context, project) {
    path.draw(context, project);
    context.fillStyle = css("--c1");
    for (const [x, y] of shown.completions.map(project)) {
      context.beginPath();
      context.moveTo(x, y - 6); context.lineTo(x + 5, y); context.lineTo(x, y + 6); context.lineTo(x - 5, y);
      context.fill();
      context.lineWidth = 1; context.strokeStyle = css("--dot-edge");
      context.closePath(); context.stroke();
    }
    if (!shown.sample) return;
    context.strokeStyle = context.fillStyle = css("--accent");
    if (shown.sample.covariance) {
      const times = magnified(shown.sample.covariance);
      context.lineWidth = 2;
      context.setLineDash(times > 1 ? [5, 4] : []);
      for (const s of [1, 2]) ellipse(context, project, shown.sample.center, shown.sample.covariance, s * times);
      context.setLineDash([]);
    }
    context.beginPath();
    context.arc(...project(shown.sample.at), 5.5, 0, 7);
    context.fill();
    context.lineWidth = 1.5; context.strokeStyle = css("--dot-edge"); context.stroke();
  }

  // What is shown about the sample under the pointer.
  const sheet = new Image();
  if (about.hover.sheet) sheet.src = about.hover.sheet;
  function hovered(i) {
    const box = document.createElement("div"), title = document.createElement("b"), labeling = about.labelings[stage.state.labeling];
    title.textContent = (about.ids.length ? about.ids[i] : "generated") + (labeling ? `, ${labeling.names[labeling.values[i]]}` : "");
    box.append(title);
    if (image) {
      const [w, h] = about.hover.size, canvas = document.createElement("canvas"), c = i % about.hover.columns, r = Math.floor(i / about.hover.columns);
      canvas.width = w; canvas.height = h;
      canvas.getContext("2d").drawImage(sheet, c * w, r * h, w, h, 0, 0, w, h);
      box.prepend(canvas);
    } else if (about.view.kind === "lines") {
      const values = about.hover.values[i], known = values.filter((v) => v !== null), low = Math.min(...known), high = Math.max(...known, low + 1e-9);
      const points = values.map((v, k) => v === null ? "" : `${(k / Math.max(values.length - 1, 1) * 120).toFixed(1)},${(38 - (v - low) / (high - low) * 36).toFixed(1)}`).join(" ");
      box.insertAdjacentHTML("afterbegin", `<svg viewBox="0 0 120 40" width="120" height="40"><polyline class="line-0" points="${points}"/></svg>`);
    } else about.hover.of.forEach((feature, k) => {
      const line = document.createElement("p"), value = about.hover.values[i][k];
      line.textContent = `${feature.name}: ${told(feature, value)}`;
      box.append(line);
    });
    return box;
  }

  const warm = latest((of) => ask("heat", { axes: stage.axes(), anchor: anchor(), of }), ({ heat, side }, of) => {
    if (of !== $("shade").value) return;
    stage.shade((c, r) => heat[r * side + c], side, of === "volume");
    stage.move();
    document.body.dataset.shade = of;
  });
  const decode = latest((at) => ask("place", { axes: stage.axes(), at, anchor: anchor() }), (found) => {
    if (image) {
      paint($("mean"), found.mean);
      paint($("deviation"), found.deviation, colours);
    } else showFeatures((j) => found.mean[j], (j) => found.deviation[j]);
    stage.gauge(found.total);
    document.body.dataset.moves = Number(document.body.dataset.moves || 0) + 1;
  });
  function again() {
    stage.shade(null);
    stage.move();
    warm($("shade").value);
  }
  const stage = startStage($, about, {
    moved: decode, over: draw, hovered, turned: () => { path.turned(); again(); }, pressed: (at, gap) => path.pressed(at, gap),
    picked: (i) => { if (about.index.length) map.pick(about.main, about.index[i]); },
  });
  const path = startPath(about, () => stage, anchor);
  $("anchor").addEventListener("change", () => { path.turned(); again(); });
  const shadeChosen = () => {
    const volume = $("shade").value === "volume", shades = volume || about.spread;
    $("shade-name").textContent = volume ? "volume element here" : "standard deviation here, summed";
    document.querySelector(".gauge").hidden = !shades;
    $("about-deviation").hidden = volume || !about.spread;
    $("about-volume").hidden = !volume;
    again();
  };
  $("shade").addEventListener("change", shadeChosen);
  $("here").hidden = !image;
  $("features").hidden = image;
  $("deviation-figure").hidden = $("about-deviation").hidden = document.querySelector(".gauge").hidden = !about.spread;
  if (!about.spread) $("shade").options[0].textContent = "nothing";
  $("top").textContent = readable(about.top, 3);

  const map = {
    colours, magnified,
    pick: () => {},
    // A sample on the map: its dot, its ellipse, and the codes of its completions.
    show(sample) {
      const moved = sample !== shown.sample && anchor();
      shown.sample = sample;
      $("anchor").querySelector("[value=sample]").disabled = !sample;
      if (moved) again(); else stage.drawOver();
    },
    complete(places) { shown.completions = places; stage.drawOver(); },
  };
  // Begin in the middle of the data.
  stage.draw();
  stage.go(about.axes.map((_, k) => about.points.map((p) => p[k]).sort((a, b) => a - b)[Math.floor(about.points.length / 2)]));
  warm("deviation");
  return map;
}

ask("opening").then((about) => {
  document.title = `${about.name} – lapae explore`;
  $("name").textContent = about.name;
  $("data").textContent = `${about.data},`;
  for (const key of ["method", "summary", "uncertainty", "version"]) $(key).textContent = about[key];
  if (about.report) { $("report").href = "report"; $("report").hidden = false; }
  $("from-others").hidden = !about.from_others;
  if (about.no_data) {
    $("no-data").hidden = false;
    $("no-data").textContent = `There are no samples to pick from: ${about.no_data}. The dots are samples that the model generated.`;
    $("dots").textContent = "a generated sample";
    $("starts").textContent = "generated sample";
    $("should").hidden = true;
    document.querySelector(".pick").hidden = true;
  }
  const map = startMap(about);
  startSample(about, map);
}).catch((error) => { $("no-data").hidden = false; $("no-data").textContent = error.message; });
