"use strict";
// What the page knows: an index of all samples, unpacked when it loads, and blocks of whole samples, each unpacked when
// one of its samples is opened. Everything is built from nodes and texts, never from markup.

async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Control characters and marks that turn a text round as escapes, as at the terminal.
function clean(text) {
  return text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, (sign) => {
    const code = sign.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16)}`;
  });
}

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") Object.entries(value).forEach(([event, act]) => node.addEventListener(event, act));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const there = children.flat().filter((child) => child !== null && child !== undefined);
  node.append(...there.map((child) => (child instanceof Node ? child : clean(String(child)))));
  return node;
}

const store = {
  index: null,
  unpacked: new Map(),
  fixed: null,

  async load() {
    this.index = await unpack(document.getElementById("index"));
  },

  // The whole sample at a place of the run's order.
  async sample(place) {
    const block = Math.floor(place / this.index.block_size);
    if (!this.unpacked.has(block)) this.unpacked.set(block, unpack(document.getElementById(`block-${block}`)));
    return (await this.unpacked.get(block))[place % this.index.block_size];
  },

  // The cause's name, null for a sample without one.
  cause(place) {
    return this.index.cause_names[this.index.causes[place]] ?? null;
  },

  // What all requests of a prompt have in common.
  async fixedText(place) {
    this.fixed = this.fixed || unpack(document.getElementById("fixed"));
    return (await this.fixed)[place];
  },
};

function writeScore(value) {
  return value === null || value === undefined ? "–" : value.toFixed(3);
}

function writeChange(value) {
  return value === null ? "–" : `${value >= 0.0005 ? "+" : value <= -0.0005 ? "−" : "±"}${Math.abs(value).toFixed(3)}`;
}
