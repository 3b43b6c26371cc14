// SPDX-License-Identifier: Apache-2.0

// node llama.mjs node-llama-cpp/dist/index.js FILE tokens|continue < JSON: what llama.cpp makes of a GGUF file.
import fs from "node:fs";

const [lib, path, task] = process.argv.slice(2);
const {getLlama} = await import(lib);
const given = JSON.parse(fs.readFileSync(0));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: path, vocabOnly: task === "tokens"});
let out;
if (task === "tokens") {
    out = given.map((text) => model.tokenize(text, true));
} else {
    const context = await model.createContext({contextSize: 64, batchSize: 64});
    out = [];
    for await (const token of context.getSequence().evaluate(given, {temperature: 0, yieldEogToken: true})) {
        out.push(token);
        if (out.length === 12) break;
    }
}
fs.writeSync(1, JSON.stringify(out));
process.exit(0);
