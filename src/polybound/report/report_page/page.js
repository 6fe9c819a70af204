// Draws the figures of a report with Plotly, which the page brings along, and opens what is folded when it is wanted.
const root = document.documentElement;
const drawings = JSON.parse(document.getElementById("drawings").textContent);
const hidden = new Map();
const narrow = matchMedia("(max-width: 44rem)");
const dark = matchMedia("(prefers-color-scheme: dark)");

// Plotly takes some tags in texts for formatting; here every text is shown as it is.
const plain = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const colour = name => getComputedStyle(root).getPropertyValue(name).trim();

// Of markers and dashes by number, as in the legend.
const symbols = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"];
const dashes = ["solid", "dash", "dashdot", "dot"];

function trace(line, figure) {
  const shade = line.colour === null ? colour("--soft") : colour("--c" + line.colour);
  const found = {
    type: "scatter", name: plain(line.name), x: line.x, y: line.y, mode: line.mode, showlegend: false,
    line: { color: shade, dash: dashes[line.dash], width: line.colour === null ? 1 : 2 },
    marker: { symbol: line.star ? "star-open" : symbols[line.marker], size: line.star ? 13 : line.size, color: shade,
      line: { color: shade, width: line.star ? 1.5 : 0 } },
    visible: !(hidden.get(figure) || new Set()).has(line.name),
    hovertemplate: "%{y:.2f}" + (line.hints ? " · %{customdata}" : "") + "<extra>" + plain(line.name) + "</extra>",
  };
  if (line.hints) found.customdata = line.hints.map(plain);
  if (line.texts) Object.assign(found, { text: line.texts.map(plain), textposition: line.places,
    textfont: { size: 10, color: shade } });
  if (line.spread) found.error_y = { type: "data", array: line.spread, thickness: 1, width: 2, color: shade };
  if (line.guide) found.hoverinfo = "skip", found.hovertemplate = undefined;
  return found;
}

function axis(about) {
  const line = colour("--line");
  return { title: { text: plain(about.title), standoff: 6 }, type: about.log ? "log" : "linear", range: about.range,
    gridcolor: line, linecolor: line, zeroline: false, automargin: true,
    ...(about.log ? { tickvals: about.ticks, ticktext: about.texts } : { nticks: 8 }) };
}

function draw() {
  const paper = root.hasAttribute("data-print"), bare = paper || narrow.matches;
  drawings.forEach((drawing, number) => {
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--text"), size: 12, family: "system-ui, sans-serif" },
      margin: { l: 48, r: 8, t: bare ? 8 : 30, b: 40 }, hovermode: drawing.hover, showlegend: false,
      hoverlabel: { bgcolor: colour("--tint"), bordercolor: colour("--line"), font: { color: colour("--text") } },
      dragmode: narrow.matches ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--text") },
      xaxis: axis(drawing.x), yaxis: axis(drawing.y),
    };
    const plot = document.getElementById("plot" + number);
    if (paper) Object.assign(layout, { width: plot.clientWidth, height: plot.clientHeight });
    // The tools stand above the field, never over it; a phone and paper have none.
    const options = { responsive: true, displaylogo: false, displayModeBar: !bare,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    Plotly.react(plot, drawing.lines.map(line => trace(line, drawing.figure)), layout, options);
  });
}

function openFolded() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}

function toggle(button) {
  const gone = hidden.get(button.dataset.figure) || new Set();
  const shown = button.getAttribute("aria-pressed") !== "true";
  if (shown) gone.delete(button.dataset.line); else gone.add(button.dataset.line);
  hidden.set(button.dataset.figure, gone);
  button.setAttribute("aria-pressed", shown);
  draw();
}

// On paper everything is light and unfolded.
function print(begins) {
  root.toggleAttribute("data-print", begins);
  for (const part of document.querySelectorAll("details:not(.long)")) {
    if (begins) part.dataset.was = part.open ? "1" : "", part.open = true;
    else part.open = Boolean(part.dataset.was);
  }
  if (window.Plotly) draw();
}

addEventListener("hashchange", openFolded);
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
openFolded();
if (drawings.length) {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(stream).text().then(text => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    draw();
    root.dataset.drawn = drawings.length;
    for (const button of document.querySelectorAll(".legend button")) button.onclick = () => toggle(button);
    for (const media of [dark, narrow]) media.addEventListener("change", draw);
    openFolded();
  });
}
