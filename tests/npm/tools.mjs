// The tools of the conversations, as any JavaScript program would write them.

export const question = "Please multiply 6 by 7, and measure the length of `patchbay`.";

export const run = {
  multiply: ({ a, b }) => ({ product: a * b }),
  measure: ({ text }) => ({ length: text.length }),
};

export const parameters = {
  multiply: {
    type: "object",
    properties: { a: { type: "integer" }, b: { type: "integer" } },
    required: ["a", "b"],
  },
  measure: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
};

export const tools = Object.keys(run).map((name) => ({
  type: "function",
  function: { name, description: `Use it to ${name}.`, parameters: parameters[name] },
}));

/** Run one called function; returns the text of its result. */
export function answerTo(called) {
  return JSON.stringify(run[called.name](JSON.parse(called.arguments)));
}
