// Shows the values under the pointer. Without it the page lacks only them. It loads nothing and keeps nothing.
"use strict";
(() => {
  const narrow = "\u202f";
  const digits = (v) => {
    const places = v === 0 || v >= 1000 ? 0 : Math.min(Math.max(2 - Math.floor(Math.log10(v)), 0), 6);
    const [whole, part] = Number(v.toFixed(places)).toString().split(".");
    const grouped = whole.length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, narrow) : whole;
    return part ? grouped + "." + part : grouped;
  };
  const duration = (s) => {
    if (s === 0) return "0" + narrow + "s";
    if (s < 1e-3) return digits(s * 1e6) + narrow + "µs";
    if (s < 1) return digits(s * 1e3) + narrow + "ms";
    if (s < 120) return digits(s) + narrow + "s";
    if (s < 7200) return digits(s / 60) + narrow + "min";
    return digits(s / 3600) + narrow + "h";
  };
  const written = { rate: (v) => digits(v) + "/s", calls: (v) => digits(v) + "/s", time: (v) => duration(v / 1e6) };
  const part = (name, text, kind) => {
    const span = document.createElement("span");
    const value = document.createElement("b");
    value.textContent = text;
    if (kind) value.className = kind;
    span.append(name + " ", value);
    return span;
  };

  // Tips of points and cells, for the pointer, the finger and the keyboard.
  for (const figure of document.querySelectorAll("figure")) {
    const readout = figure.querySelector(".readout");
    for (const spot of figure.querySelectorAll("[data-tip]")) {
      const show = () => { readout.textContent = spot.dataset.tip; figure.classList.add("telling"); };
      const hide = () => figure.classList.remove("telling");
      spot.addEventListener("pointerenter", show);
      spot.addEventListener("focus", show);
      spot.addEventListener("pointerleave", hide);
      spot.addEventListener("blur", hide);
    }
  }

  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const values = new Map(data.charts.map((c) => [c.id, c]));
  const charts = [...document.querySelectorAll(".chart")].map((figure) => ({
    figure,
    plot: figure.querySelector(".plot"),
    inner: figure.querySelector(".inner"),
    cursor: figure.querySelector(".cursor"),
    readout: figure.querySelector(".readout"),
    values: values.get(figure.id),
  }));
  let at = -1;

  // All charts show the same moment.
  const show = (step, chart, y) => {
    at = Math.min(Math.max(step, 0), data.steps - 1);
    const x = ((at + 0.5) / data.steps) * 100 + "%";
    for (const c of charts) {
      c.cursor.setAttribute("x1", x);
      c.cursor.setAttribute("x2", x);
      c.figure.classList.add("hovering");
      if (!c.values) continue;
      c.figure.classList.add("telling");
      c.readout.replaceChildren(part("at", duration((at + 0.5) * data.step)));
      for (const row of c.values.data) {
        const v = row.values[at];
        c.readout.append(part(row.name, v === null ? "—" : (written[row.unit] || digits)(v), row.class));
      }
      const rows = c.values.rows;
      if (rows && c === chart && y >= 0 && y < 1) c.readout.append(part("here", rows[Math.floor(y * rows.length)]));
    }
  };
  const hide = () => {
    at = -1;
    for (const c of charts) c.figure.classList.remove("hovering", "telling");
  };
  for (const c of charts) {
    const point = (event) => {
      const box = c.plot.getBoundingClientRect();
      const top = box.top + Number(c.inner.getAttribute("y"));
      const y = (event.clientY - top) / Number(c.inner.getAttribute("height"));
      show(Math.floor(((event.clientX - box.left) / box.width) * data.steps), c, y);
    };
    c.plot.addEventListener("pointermove", point);
    c.plot.addEventListener("pointerdown", point);
    c.plot.addEventListener("pointerleave", hide);
    c.plot.addEventListener("blur", hide);
    c.plot.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(data.steps / 60));
      const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: data.steps - 1 }[event.key];
      if (event.key === "Escape") return hide();
      if (to === undefined) return;
      event.preventDefault();
      show(to, c, -1);
    });
  }
})();
