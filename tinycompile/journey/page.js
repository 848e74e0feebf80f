"use strict";
// The timeline, and lines of one kernel that light up together in its sources. No library; everything else is plain HTML.

const COLOURS = { op: "#4e79a7", torch: "#9c9c9c", kernel: "#59a14f", library: "#edc948", compiled: "#b07aa1", replay: "#b07aa1", backward: "#e15759" };
const ROW = 20, SVG = "http://www.w3.org/2000/svg";

function drawTimeline(box, data, width) {
  const scale = width / Math.max(data.length, 1);
  const svg = document.createElementNS(SVG, "svg");
  let y = 0;
  for (const row of data.rows) {
    const label = document.createElementNS(SVG, "text");
    label.setAttribute("x", 2);
    label.setAttribute("y", y + 13);
    label.setAttribute("class", "row");
    label.textContent = row.name;
    svg.append(label);
    y += ROW;
    for (const [start, length, depth, kind, name, step] of row.spans) {
      const rect = document.createElementNS(SVG, "rect");
      rect.setAttribute("x", (start * scale).toFixed(2));
      rect.setAttribute("y", y + depth * ROW);
      rect.setAttribute("width", Math.max(length * scale, 1).toFixed(2));
      rect.setAttribute("height", ROW - 2);
      rect.setAttribute("fill", COLOURS[kind] || COLOURS.op);
      const title = document.createElementNS(SVG, "title");
      title.textContent = `${name}: ${length.toFixed(1)} us at ${start.toFixed(1)} us`;
      rect.append(title);
      rect.addEventListener("click", () => show(step));
      svg.append(rect);
    }
    y += row.depth * ROW;
  }
  svg.setAttribute("width", width);
  svg.setAttribute("height", y);
  box.replaceChildren(svg);
}

function show(step) {
  const found = document.getElementById("step" + step);
  if (!found) return;
  for (let e = found; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  found.scrollIntoView({ block: "center" });
}

function start() {
  const box = document.getElementById("timeline");
  if (box) {
    const data = JSON.parse(document.getElementById("timeline-data").textContent);
    let width = Math.max(box.clientWidth - 4, 600);
    const draw = () => drawTimeline(box, data, width);
    document.getElementById("wider").addEventListener("click", () => { width = Math.min(width * 2, 200000); draw(); });
    document.getElementById("narrower").addEventListener("click", () => { width = Math.max(width / 2, 300); draw(); });
    draw();
  }
  for (const panes of document.querySelectorAll(".panes")) {
    panes.addEventListener("click", (event) => {
      const line = event.target.dataset && event.target.dataset.l;
      if (!line) return;
      for (const row of panes.querySelectorAll("[data-l]")) row.classList.toggle("on", row.dataset.l === line);
      for (const pane of panes.querySelectorAll(".code")) {
        const first = pane.querySelector(".on");
        if (first && !pane.contains(event.target)) pane.scrollTop = first.offsetTop - pane.offsetTop - 60;
      }
    });
  }
  document.documentElement.dataset.ready = "yes";
}

document.addEventListener("DOMContentLoaded", start);
