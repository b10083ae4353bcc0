// Server-sent events of a response that is no EventSource: the answer to a POST.

/** Yields the data of each event. */
export async function* readEvents(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split(/\r?\n/);
      rest = done ? "" : lines.pop()!;
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
