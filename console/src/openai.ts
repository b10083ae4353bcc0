// Where the server has the OpenAI API.

import { info } from "./session";

/** The path of the OpenAI API below the server's address: /v1, or that of --base-path. */
export function openaiPath(): string {
  return info.peek()?.openai_path ?? "/v1";
}
