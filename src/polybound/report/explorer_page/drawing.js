// Pictures on canvases: inputs in grey or colour, or as bars; perturbations in two colours.

const POSITIVE = [213, 94, 0];
const NEGATIVE = [0, 114, 178];
const GREY = [128, 128, 128];
const BARS = 48;

function makeElement(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// A picture whose pixel i is what write(bytes, i) puts into the four bytes from 4 i on.
function fill(canvas, width, height, write) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) write(image.data, i);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function put(bytes, i, colour, opacity) {
  bytes[4 * i] = colour[0];
  bytes[4 * i + 1] = colour[1];
  bytes[4 * i + 2] = colour[2];
  bytes[4 * i + 3] = opacity;
}

const hue = (value) => (value > 0 ? POSITIVE : NEGATIVE);

// Bars from the middle of the picture, upwards for positive values in [-1, 1].
function fillBars(canvas, values, colourOf) {
  const width = values.length;
  fill(canvas, width, BARS, (bytes, i) => {
    const value = values[i % width];
    const height = 1 - (2 * Math.floor(i / width) + 1) / BARS;
    const inside = value > 0 ? height > 0 && height <= value : height < 0 && height >= value;
    if (inside) put(bytes, i, colourOf(value), 255);
  });
}

function drawInput(canvas, x, data) {
  const [low, high] = data.domain;
  if (!data.picture) {
    fillBars(canvas, Array.from(x, (value) => (2 * (value - low)) / (high - low) - 1), () => GREY);
    return;
  }
  const [channels, height, width] = data.shape;
  const next = channels === 3 ? height * width : 0;
  const scale = 255 / (high - low);
  fill(canvas, width, height, (bytes, i) => {
    bytes[4 * i] = scale * (x[i] - low);
    bytes[4 * i + 1] = scale * (x[i + next] - low);
    bytes[4 * i + 2] = scale * (x[i + 2 * next] - low);
    bytes[4 * i + 3] = 255;
  });
}

// The change of every entry, by colour and strength; full strength is eps.
function drawChange(canvas, x, z, eps, data) {
  const change = Float64Array.from(x, (value, i) => (eps > 0 ? (z[i] - value) / eps : 0));
  if (!data.picture) {
    fillBars(canvas, change, hue);
    return;
  }
  const [channels, height, width] = data.shape;
  const size = height * width;
  fill(canvas, width, height, (bytes, i) => {
    let mean = 0;
    for (let channel = 0; channel < channels; channel++) mean += change[i + channel * size] / channels;
    put(bytes, i, hue(mean), 255 * Math.min(1, Math.abs(mean)));
  });
}
