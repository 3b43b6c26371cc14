"""Makes frames/: one table as pandas, csv and json write it, by hand too, in the variants that people have.

The table has a column of texts (with a comma, quotes, a line end and an empty one), one of labels and one of numbers.
Made with pandas 3.1.1.
"""

import csv
import json
import pathlib
import sys

import pandas

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent / "frames")
out.mkdir(parents=True, exist_ok=True)
rows = [{"text": 'good, "very"', "label": 1, "score": 0.5}, {"text": "schön\nund gut", "label": 0, "score": None},
        {"text": "", "label": 1, "score": -2.0}]
frame = pandas.DataFrame(rows)
frame.to_csv(out / "index.csv")
frame.to_csv(out / "plain.csv", index=False)
frame.to_csv(out / "semicolons.csv", index=False, sep=";")
frame.to_csv(out / "tabs.csv", index=False, sep="\t")
frame.to_csv(out / "excel.csv", index=False, encoding="utf-8-sig", quoting=csv.QUOTE_ALL, lineterminator="\r\n")
frame.to_csv(out / "packed.csv.gz", index=False, compression={"method": "gzip", "mtime": 0})
frame.to_json(out / "lines.jsonl", orient="records", lines=True, force_ascii=False)
frame.to_json(out / "records.json", orient="records")
frame.to_json(out / "indented.json", orient="records", indent=2)
(out / "python.jsonl").write_text("".join(json.dumps({**r, "score": float("nan") if r["score"] is None else r["score"]})
                                          + "\n" for r in rows))
(out / "objects.json").write_text("\n".join(json.dumps(r, indent=4) for r in rows))
(out / "blanks.csv").write_text('text, label, score\n"good, ""very""", 1, 0.5\n"schön\nund gut", 0,\n"", 1, -2.0\n',
                                encoding="utf-8")
