// Pictures on canvases: inputs in grey or colour, or as bars; perturbations in two colours.

const POSITIVE = [213, 94, 0];
const NEGATIVE = [0, 114, 178];
const BARS = 48;

function makeElement(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// Values as RGBA bytes, each pixel by colour(index of the pixel).
function fill(canvas, width, height, colour) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set(colour(i), 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Bars from the middle of the picture, upwards for positive values in [-1, 1].
function fillBars(canvas, values, colourOf) {
  const width = values.length;
  fill(canvas, width, BARS, (i) => {
    const value = values[i % width];
    const height = 1 - (2 * Math.floor(i / width) + 1) / BARS;
    const inside = value > 0 ? height > 0 && height <= value : height < 0 && height >= value;
    return inside ? colourOf(value) : [0, 0, 0, 0];
  });
}

function drawInput(canvas, x, data) {
  const [low, high] = data.domain;
  const share = (value) => (value - low) / (high - low);
  if (!data.picture) {
    fillBars(canvas, Array.from(x, (value) => 2 * share(value) - 1), () => [128, 128, 128, 255]);
    return;
  }
  const [channels, height, width] = data.shape;
  const size = height * width;
  fill(canvas, width, height, (i) => {
    const at = (channel) => 255 * share(x[i + (channels === 3 ? channel * size : 0)]);
    return [at(0), at(1), at(2), 255];
  });
}

// The change of every entry, by colour and strength; full strength is eps.
function drawChange(canvas, x, z, eps, data) {
  const change = Array.from(x, (value, i) => (eps > 0 ? (z[i] - value) / eps : 0));
  const shade = (value) => [...(value > 0 ? POSITIVE : NEGATIVE), 255 * Math.min(1, Math.abs(value))];
  if (!data.picture) {
    fillBars(canvas, change, (value) => [...(value > 0 ? POSITIVE : NEGATIVE), 255]);
    return;
  }
  const [channels, height, width] = data.shape;
  const size = height * width;
  fill(canvas, width, height, (i) => {
    let mean = 0;
    for (let channel = 0; channel < channels; channel++) mean += change[i + channel * size] / channels;
    return shade(mean);
  });
}
