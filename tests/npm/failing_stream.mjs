// A stream that fails, with a version of `@google/genai`: node failing_stream.mjs PACKAGE BASE_URL. Prints JSON.
const [name, baseUrl] = process.argv.slice(2);
const { GoogleGenAI } = await import(name);
const client = new GoogleGenAI({ apiKey: "unused", httpOptions: { baseUrl, timeout: 20_000 } });
const seen = { text: "", status: null, message: "" };
try {
  const stream = await client.models.generateContentStream({ model: "m", contents: "Hi." });
  for await (const chunk of stream) seen.text += chunk.text ?? "";
} catch (error) {
  seen.status = error.status;
  seen.message = error.message;
}
console.log(JSON.stringify(seen));
