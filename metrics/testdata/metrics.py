"""Makes metrics.json: metrics of random and of special labels and predictions, by scikit-learn, SciPy, sacrebleu and
rouge_score.

A result that is not finite is a string ("nan"); an error is null. The Matthews correlation, precision and the others
are those of scikit-learn, Pearson and Spearman those of SciPy.
"""

import argparse
import importlib.metadata
import json
import math
import pathlib
import platform
import warnings

import nltk
import numpy as np
import sacrebleu
import scipy
import sklearn
from nltk.stem import porter
from rouge_score import rouge_scorer
from scipy import stats
from sklearn import metrics

warnings.simplefilter("ignore")


def result(function, *arguments, **settings):
    """What a function returns, as JSON has it."""
    try:
        value = function(*arguments, **settings)
    except ValueError:
        return None
    if isinstance(value, tuple):
        return [None if v is None else float(v) for v in value]
    value = float(value)
    return value if math.isfinite(value) else str(value)


def classification(labels, predictions):
    scores = metrics.precision_recall_fscore_support
    kept = [(y, p) for y, p in zip(labels, predictions) if y != -100]
    y, p = [k[0] for k in kept], [k[1] for k in kept]
    classes = sorted(set(y + p))
    out = {"labels": labels, "predictions": predictions, "classes": classes}
    out["accuracy"] = result(metrics.accuracy_score, y, p)
    out["matthews"] = result(metrics.matthews_corrcoef, y, p)
    for average in ("macro", "micro", "weighted"):
        out[average] = result(scores, y, p, average=average, zero_division=0)
    if set(classes) <= {0, 1}:
        out["binary"] = result(scores, y, p, average="binary", zero_division=0)
    out["each"] = [result(scores, y, p, labels=[k], average="macro", zero_division=0) for k in classes]
    return out


def numbers(labels, predictions):
    return {
        "labels": [x if math.isfinite(x) else str(x) for x in labels],
        "predictions": [x if math.isfinite(x) else str(x) for x in predictions],
        "mse": result(metrics.mean_squared_error, labels, predictions),
        "mae": result(metrics.mean_absolute_error, labels, predictions),
        "r2": result(metrics.r2_score, labels, predictions),
        "pearson": result(lambda: stats.pearsonr(labels, predictions).statistic),
        "spearman": result(lambda: stats.spearmanr(labels, predictions).statistic),
    }


def all_classifications(rng):
    special = [([0, 0], [0, 0]), ([1, 1], [1, 1]), ([1], [0]), ([0, 0], [1, 1]), ([0, 1, 2], [0, 0, 0]),
               ([0, 1, 1, 0], [1, 0, 0, 1]), ([2, 7, 7], [9, 7, 2]), ([-100, 1, 0, -100], [1, 1, 1, 0])]
    cases = [classification(y, p) for y, p in special]
    for n, classes, wrong in ((10, 2, 0.3), (200, 2, 0.1), (37, 3, 0.5), (500, 7, 0.2), (100, 20, 0.9)):
        y = rng.integers(classes, size=n)
        p = np.where(rng.random(n) < wrong, rng.integers(classes, size=n), y)
        y = np.where(rng.random(n) < 0.1, -100, y)
        cases.append(classification(y.tolist(), p.tolist()))
    return cases


def all_numbers(rng):
    nan, inf = math.nan, math.inf
    special = [([1.0], [2.0]), ([1.0, 2.0], [2.0, 1.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 1.0], [1.0, 1.0]),
               ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]), ([1.0, nan, 2.0], [1.0, 2.0, 3.0]), ([1.0, 3.0, 2.0], [1.0, 2.0, inf]),
               ([1.0, 2.0, 2.0, 3.0], [1.0, 1.0, 4.0, 4.0]), ([1e200, 2e200, -1e200], [1.0, 3.0, 2.0]),
               ([1e8 + 1, 1e8 + 2, 1e8 + 3], [3.0, 1.0, 2.0])]
    cases = [numbers(y, p) for y, p in special]
    for n, noise in ((3, 0.5), (10, 0.1), (100, 1.0), (1000, 3.0)):
        y = rng.normal(size=n)
        cases.append(numbers(y.tolist(), (2 * y - 1 + noise * rng.normal(size=n)).tolist()))
    y = rng.integers(5, size=60).astype(float)
    cases.append(numbers(y.tolist(), (y + rng.integers(-1, 2, size=60)).tolist()))
    return cases


def all_texts(rng):
    pairs = [("The cat sat on the mat.", "A cat sat on the mat!"), ("", "something"), ("something", ""),
             ("Größe 10 €", "größe 10€"), ("a b", "ab"), ("猫は マット の上", "猫 はマットに座る"), ("abc", "xyz"),
             ("one two three", "one two three"), ("to be or not to be", "be be be to or"), ("x", "xxxxxxxx")]
    cases = [([r], [p]) for r, p in pairs] + [tuple(map(list, zip(*pairs))), tuple(map(list, zip(*pairs[1:4])))]
    cases.append((["a\x1cb\x1fc d"], ["ab\x1ec\x1dd\u2003e"]))  # white space of Python, not all of it Unicode's
    cases += [sentences(rng, n) for n in (1, 2, 5, 40)]
    return [text(r, p) for r, p in cases]


def sentences(rng, n):
    """References, and predictions that leave out, repeat and change words, with what tokenizers cut."""
    words = ("the a of running runs runner happily happiness relational nationalities 3.5 1,000 half-way 4-5 U.S. don't "
             "&quot;so&quot; &amp;lt; Ärger naïve e.g. (yes) [no] 100% a/b flies died agreed controlling yyy skies news "
             "analogically hopefulli ?! \n \n .").split(" ")
    references, predictions = [], []
    for _ in range(n):
        reference = list(rng.choice(words, size=rng.integers(1, 40)))
        prediction = [w if rng.random() < 0.8 else str(rng.choice(words)) for w in reference if rng.random() < 0.9]
        references.append(" ".join(reference))
        predictions.append(" ".join(prediction))
    return references, predictions


def text(references, predictions):
    out = {"references": references, "predictions": predictions,
           "chrf": sacrebleu.corpus_chrf(predictions, [references]).score,
           "bleu": sacrebleu.corpus_bleu(predictions, [references]).score,
           "bleu_of_two": sacrebleu.corpus_bleu(predictions, [references, references[1:] + references[:1]]).score}
    for name, stem in (("rouge", False), ("rouge_stemmed", True)):
        scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=stem)
        scores = [scorer.score(r, p) for r, p in zip(references, predictions)]
        out[name] = [float(np.mean([s[kind].fmeasure for s in scores])) for kind in scorer.rouge_types]
    return out


def all_stems():
    """Words with every ending of the algorithm, behind stems of several measures, and NLTK's exceptions."""
    stemmer = porter.PorterStemmer()
    endings = ("s es ies sses ss ied eed ed ing y ational tional enci anci izer bli abli alli entli eli ousli ization "
               "ation ator alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful "
               "ness al ance ence er ic able ible ant ement ment ent sion tion ou ism ate iti ous ive ize e ll le "
               "ated bling izing pped lling ssed zzing ally alliy").split()
    stems = ["", "t", "tr", "ho", "hop", "fail", "pre", "relat", "vietnam", "by", "enjo", "say", "syzyg", "op", "x2"]
    words = [s + e for s in stems for e in endings] + list(stemmer.pool) + ["yyyyyy", "ayyya", "y", "is", "on"]
    return [[w, stemmer.stem(w)] for w in dict.fromkeys(words) if w]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    out = parser.parse_args().out
    rng = np.random.default_rng(0)
    document = {
        "made_by": {"python": platform.python_version(), "numpy": np.__version__, "scikit-learn": sklearn.__version__,
                    "scipy": scipy.__version__, "sacrebleu": sacrebleu.__version__,
                    "rouge-score": importlib.metadata.version("rouge-score"), "nltk": nltk.__version__},
        "classification": all_classifications(rng),
        "numbers": all_numbers(rng),
        "texts": all_texts(rng),
        "stems": all_stems(),
    }
    lines = [f'"made_by": {json.dumps(document.pop("made_by"))}']
    lines += [f'"{name}": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False, allow_nan=False) for c in cases) + "\n]"
              for name, cases in document.items()]
    (out / "metrics.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


main()
