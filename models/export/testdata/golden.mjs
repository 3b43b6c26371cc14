// SPDX-License-Identifier: Apache-2.0

// Writes golden.json: what llama.cpp makes of the files of the tests' models.
//
//     npm install node-llama-cpp@3.22.1
//     go test ./models/export -run TestLlamaCpp -args -keep /tmp/files
//     node golden.mjs node_modules/node-llama-cpp/dist/index.js /tmp/files
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";

const [lib, dir] = process.argv.slice(2);
const {getLlama} = await import(path.resolve(lib));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});
const prompt = [5, 42, 17, 101, 3, 77, 200, 31];
const lines = ["", "Hello 1234 world", " 12  345", "It's the 12th, don't!", "I'LL GO", "a\n\n  b\t\tc", "naïve café",
    "日本語 12年", "١٢٣ १२३ ½ x²", "the  end   ", "\n", "🙂👍🏽 ok"];
const files = {};
for (const name of fs.readdirSync(dir).filter((n) => n.endsWith(".gguf")).sort()) {
    const file = path.join(dir, name);
    const model = await llama.loadModel({modelPath: file, defaultContextFlashAttention: false,
        experimentalDefaultContextKvCacheKeyType: "F32", experimentalDefaultContextKvCacheValueType: "F32"});
    const context = await model.createContext({contextSize: 64, batchSize: 64});
    const sequence = context.getSequence();
    const greedy = [];
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        greedy.push(token);
        if (greedy.length === 24) break;
    }
    await sequence.clearHistory();
    const input = prompt.map((id, i) => i < prompt.length - 1 ? id : [id, {generateNext: {logits: true}}]);
    const all = (await sequence.controlledEvaluate(input)).at(-1).next.logits;
    const logits = Array.from({length: 40}, (_, id) => Number(all.get(id).toFixed(5)));
    console.error(name);
    files[name] = {sha256: crypto.createHash("sha256").update(fs.readFileSync(file)).digest("hex"), greedy, logits,
        tokens: name.endsWith("-f32.gguf") ? lines.map((text) => model.tokenize(text, true)) : undefined};
    await context.dispose();
    await model.dispose();
}
const text = JSON.stringify({prompt, lines, files}).replaceAll('},"', '},\n"');
fs.writeFileSync(path.join(import.meta.dirname, "golden.json"), text + "\n");
process.exit(0);
