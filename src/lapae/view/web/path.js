"use strict";
// A path between two places of the map: the shortest one for the decoder, its length, and what is decoded along it.
function startPath(about, stage, anchor) {
  const { css } = latentMap, image = about.view.kind === "image";
  const state = { on: false, ends: [], marks: [], found: null };

  const asked = (axes, ends, of) => ask("path", { axes, anchor: of, ends }).catch((error) => {
    if (ends === state.ends) turn(false);
    throw error;
  });
  const measure = latest(asked, (found, axes, ends) => {
    if (ends !== state.ends) return;
    state.found = found;
    tell(`Distance ${readable(found.length, 3)} standard deviations of the noise (straight line ${readable(found.straight, 3)}). Press for another path; Escape ends.`);
    showStops(found);
    stage().drawOver();
    document.body.dataset.paths = Number(document.body.dataset.paths || 0) + 1;
  });

  function tell(text) {
    $("along").hidden = !text;
    $("path-text").textContent = text;
  }

  function begin() {
    Object.assign(state, { ends: [], marks: [], found: null });
    $("stops").replaceChildren();
    tell(state.on ? "Press where the path begins: a dot, or any place. With the keyboard: arrows and Enter." : "");
    stage().drawOver();
  }

  function turn(on) {
    state.on = on;
    $("path").setAttribute("aria-pressed", String(on));
    begin();
  }

  // A press on the map is an end of the path while one is measured: the dot there, or the place.
  function pressed(at, gap) {
    if (!state.on) return false;
    if (state.ends.length === 2) begin();
    const [x, y] = stage().axes(), dot = gap < 16, mark = about.axes.map(() => 0);
    mark[x] = at[0];
    mark[y] = at[1];
    state.ends.push(dot ? { point: stage().state.nearest } : { at });
    state.marks.push(dot ? about.points[stage().state.nearest] : mark);
    if (state.ends.length === 2) {
      tell("Measuring …");
      measure(stage().axes(), state.ends, anchor());
    } else tell("Press where it ends: a dot, or any place.");
    stage().drawOver();
    return true;
  }

  // Samples at equal distances along the path: pictures, or the columns that change most.
  function showStops({ samples }) {
    const box = $("stops"), of = about.view.features;
    box.replaceChildren();
    box.className = image ? "stops" : "scroll";
    if (image) return samples.forEach((picture) => {
      const canvas = document.createElement("canvas");
      paint(canvas, picture);
      box.append(canvas);
    });
    if (about.view.kind === "lines") {
      const width = 100 / samples.length, low = Math.min(...samples.flat()), high = Math.max(...samples.flat(), low + 1e-9);
      const line = (values, s) => values.map((v, k) => `${(s * width + 1 + k / Math.max(values.length - 1, 1) * (width - 2)).toFixed(2)},${(28 - (v - low) / (high - low) * 26).toFixed(2)}`).join(" ");
      box.innerHTML = `<svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label="samples along the path">${samples.map((values, s) => `<polyline class="line-0" points="${line(values, s)}"/>`).join("")}</svg>`;
      return;
    }
    const change = (j) => Math.abs(samples[samples.length - 1][j] - samples[0][j]) / Math.max(of[j].high - of[j].low, 1e-12);
    const table = document.createElement("table");
    for (const j of of.map((_, i) => i).sort((a, b) => change(b) - change(a)).slice(0, 5)) {
      const row = table.insertRow();
      for (const text of [of[j].name, ...samples.map((values) => told(of[j], values[j], 3))]) row.insertCell().textContent = text;  // text, never markup
    }
    box.append(table);
  }

  function draw(context, project) {
    context.strokeStyle = context.fillStyle = css("--c3");
    const disc = (p, radius) => { context.beginPath(); context.arc(...project(p), radius, 0, 7); context.fill(); };
    const line = (points) => { context.beginPath(); points.forEach((p, i) => context[i ? "lineTo" : "moveTo"](...project(p))); context.stroke(); };
    if (state.found) {
      context.lineWidth = 1;
      context.setLineDash([3, 4]);
      line([state.found.at[0], state.found.at[state.found.at.length - 1]]);
      context.setLineDash([]);
      context.lineWidth = 2.5;
      line(state.found.at);
      state.found.stops.forEach((p) => disc(p, 3.5));
    } else state.marks.forEach((p) => disc(p, 5));
  }

  $("path").addEventListener("click", () => turn(!state.on));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.on) turn(false);
    else if (event.key.toLowerCase() === "p" && event.target === $("over") && !event.ctrlKey && !event.metaKey) turn(true);
  });
  return { draw, pressed, turned: () => { if (state.on && !state.found) begin(); } };
}
