"use strict";
// What latent maps are drawn with, on both pages: no state, no data of their own.
const latentMap = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (name) => css(name).match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
  const clamp = (value, low = 0, high = 1) => Math.min(Math.max(value, low), high);
  const colour = (value, n) => value < 0 ? css("--c7") : n <= 10 ? css(`--c${value % 10}`) : `hsl(${(value * 137.5) % 360} 60% 52%)`;

  function fit(canvas) {
    const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [context, box.width, box.height];
  }

  // Range of the shades of a map: a few large values would lighten all others, and where all values are about the same,
  // so is the shade. Logarithms have no zero, and a few small ones would darken all others.
  function range(values, logs) {
    const sorted = values.slice().sort((a, b) => a - b), n = sorted.length;
    const low = sorted[logs ? Math.floor(n * 0.005) : 0], high = Math.max(sorted[Math.floor(n * 0.995)], low + 1e-9);
    if (logs) return high - low < 0.02 ? [low, low + 1] : [low, high];
    return [high - low < 0.02 * high ? 0 : low, high];
  }

  // Shades of side * side values, from the upper left corner row by row; flat where there is nothing to shade. Of the
  // whole map, `view` says what is in sight.
  function shades(context, width, height, side, value, [low, high], flat, view) {
    const stops = [rgb("--heat-0"), rgb("--heat-1"), rgb("--heat-2")];
    const small = document.createElement("canvas");
    small.width = small.height = side;
    const pixels = small.getContext("2d").createImageData(side, side);
    for (let r = 0; r < side; r++) for (let c = 0; c < side; c++) {
      const t = clamp((value(c, r) - low) / (high - low)) * (flat ? 0 : 2);
      const from = stops[Math.min(Math.floor(t), 1)], to = stops[Math.min(Math.floor(t), 1) + 1], f = t - Math.min(Math.floor(t), 1);
      for (let k = 0; k < 3; k++) pixels.data[4 * (r * side + c) + k] = from[k] + (to[k] - from[k]) * f;
      pixels.data[4 * (r * side + c) + 3] = 255;
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(small, view.left * side, view.top * side, side / view.zoom, side / view.zoom, 0, 0, width, height);
  }

  // The data as dots; `at` gives a point's place in sight, from 0 to 1, `alone` the one class that is not faint.
  function dots(context, width, height, points, at, labeling, alone) {
    const n = labeling ? labeling.names.length : 1;
    const colours = labeling ? labeling.names.map((_, i) => colour(i, n)) : [css("--c0")];
    const radius = width < 420 ? 2 : 2.6;
    for (const dimmed of [true, false]) points.forEach((p, i) => {
      const value = labeling ? labeling.values[i] : 0, faint = alone !== null && value !== alone;
      if (faint !== dimmed) return;
      const [u, v] = at(p);
      if (u < -0.02 || u > 1.02 || v < -0.02 || v > 1.02) return;
      context.globalAlpha = faint ? 0.12 : 0.9;
      context.beginPath();
      context.arc(u * width, v * height, radius, 0, 7);
      context.fillStyle = colours[value] || css("--c7");
      context.fill();
      context.lineWidth = 0.6;
      context.strokeStyle = css("--dot-edge");
      context.stroke();
    });
    context.globalAlpha = 1;
  }

  function axisNames(context, width, height, across, up) {
    context.font = "600 13px system-ui, sans-serif";
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = css("--card");
    context.fillStyle = css("--ink");
    for (const [text, align, x, y] of [[`${across} →`, "right", width - 10, height - 11], [`↑ ${up}`, "left", 10, 20]]) {
      context.textAlign = align;
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    }
  }

  function cross(context, width, height, u, v) {
    const x = u * width, y = v * height;
    context.strokeStyle = css("--cross");
    context.lineWidth = 1;
    context.globalAlpha = 0.35;
    context.beginPath();
    context.moveTo(x, 0); context.lineTo(x, height); context.moveTo(0, y); context.lineTo(width, y);
    context.stroke();
    context.globalAlpha = 1;
    context.lineWidth = 2;
    ring(context, x, y, 7);
  }

  function ring(context, x, y, radius) {
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.stroke();
  }

  // Where the pointer is over a canvas, from 0 to 1.
  function place(canvas, event) {
    const box = canvas.getBoundingClientRect();
    return [clamp((event.clientX - box.left) / box.width), clamp((event.clientY - box.top) / box.height)];
  }

  const step = (key) => ({ ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02] })[key];

  function legend(box, labeling, alone, choose) {
    box.replaceChildren();
    if (!labeling) return;
    const present = new Set(labeling.values);
    labeling.names.forEach((name, value) => {
      if (!present.has(value)) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;  // text, never markup
      button.style.setProperty("--dot", colour(value, labeling.names.length));
      button.setAttribute("aria-pressed", String(alone === value));
      button.addEventListener("click", () => choose(alone === value ? null : value));
      box.append(button);
    });
  }

  // Bars, or lines with a band (one strip per channel), for data that are no pictures. Returns what shows (mean, deviation) of each feature.
  function features(box, view, spread) {
    const of = view.features, at = (j, value) => clamp((value - of[j].low) / Math.max(of[j].high - of[j].low, 1e-12));
    if (view.kind === "lines") {
      const strips = Math.max(view.channels.length, 1), each = of.length / strips, height = 170 / strips, top = strips > 1 ? 16 : 5;  // room for a name
      box.innerHTML = `<svg viewBox="0 0 300 170" role="img" aria-label="decoded values">${'<polygon class="band"/><polyline class="line-0"/><text x="2"/>'.repeat(strips)}</svg>`;
      const bands = box.querySelectorAll("polygon"), lines = box.querySelectorAll("polyline");
      if (strips > 1) box.querySelectorAll("text").forEach((text, s) => { text.setAttribute("y", s * height + 12); text.textContent = view.channels[s]; });
      return (mean, deviation) => {
        const step = 300 / Math.max(each - 1, 1);
        for (let s = 0; s < strips; s++) {
          const y = (j, value) => ((s + 1) * height - 5 - (height - 5 - top) * at(j, value)).toFixed(1);
          const line = [], upper = [], lower = [];
          for (let i = 0; i < each; i++) {
            const j = s * each + i, m = mean(j), d = deviation(j), x = (i * step).toFixed(1);
            line.push(`${x},${y(j, m)}`); upper.push(`${x},${y(j, m + d)}`); lower.unshift(`${x},${y(j, m - d)}`);
          }
          lines[s].setAttribute("points", line.join(" "));
          bands[s].setAttribute("points", upper.concat(lower).join(" "));
        }
      };
    }
    const bars = of.map((feature) => {
      const row = document.createElement("div");
      row.className = "feature";
      row.innerHTML = '<span class="name"></span><span class="track"><i></i><b></b></span><span class="value"></span>';
      row.children[0].textContent = row.children[0].title = feature.name;  // text, never markup
      box.append(row);
      return [row.querySelector("i"), row.querySelector("b"), row.children[2]];
    });
    return (mean, deviation) => bars.forEach(([band, dot, text], j) => {
      const m = mean(j), d = deviation(j), from = at(j, m - d), to = at(j, m + d);
      band.style.left = `${100 * from}%`;
      band.style.width = `${Math.max(100 * (to - from), 0.5)}%`;
      dot.style.left = `${100 * at(j, m)}%`;
      const number = of[j].kind === "number" || of[j].kind === "count";
      text.textContent = told(of[j], m, 3) + (spread && number ? ` ± ${readable(d, 2)}` : "");
    });
  }

  // What is shaded at a place: a needle on the scale of the shades, beside where 90 % of the samples are.
  function gauge($, here, sorted, [low, high], logs) {
    const at = (value) => 100 * clamp((value - low) / (high - low));
    const n = sorted.length, quantile = (q) => sorted[Math.min(n - 1, Math.floor(q * n))];
    $("total").textContent = readable(logs ? Math.exp(here) : here, 3);
    $("shade-low").textContent = logs ? readable(Math.exp(low), 3) : readable(low, 3, high);
    $("shade-high").textContent = readable(logs ? Math.exp(high) : high, 3);
    $("needle").style.left = `${at(here)}%`;
    $("data-range").style.left = `${at(quantile(0.05))}%`;
    $("data-range").style.width = `${Math.max(at(quantile(0.95)) - at(quantile(0.05)), 1)}%`;
    const below = sorted.filter((value) => value < here).length;
    const times = logs ? Math.exp(here - quantile(0.5)) : here / quantile(0.5);
    $("compare").textContent = (below === 0 ? "less than at almost all samples"
      : below === n ? `more than at any of the ${n} samples: ${times.toFixed(1)} times the median`
      : `more than at ${Math.round(100 * below / n)} % of the samples`) + "; the line marks where 90 % of them are";
  }

  return { css, clamp, fit, range, shades, dots, axisNames, cross, ring, place, step, legend, features, gauge };
})();
