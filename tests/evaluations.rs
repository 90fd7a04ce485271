//! Runs `eval ppl --ctx`, `--kl` and `eval choice`.

mod common;

use common::Workplace;

/// A text of a few hundred tokens.
const TEXT: &str = "The cat sat on the mat. It was a sunny day, and the birds were singing in the old tree by the river. ";

#[test]
fn saved_logits_are_no_distance_from_themselves() {
    let place = Workplace::new();
    let text = place.file("text.txt", TEXT.repeat(12));
    let text = text.display().to_string();
    let (saved, csv) = (place.name("saved.logits"), place.name("out.csv"));
    let ppl = ["eval", "ppl", &text, "--json"];
    let of = |flags: &[&str]| place.run(ppl.iter().chain(flags)).succeeded().json();
    let found = of(&["--ctx", "64", "--save-logits", &saved]);
    let perplexity = found["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity.is_finite(), "{found}");
    let windows = found["windows"].as_u64().unwrap();
    assert!(windows >= 2, "{found}");
    // The last 31 of 64 tokens, those after the middle, are predicted.
    assert_eq!(found["tokens"].as_u64().unwrap(), 31 * windows);
    assert_eq!(found["model_sha256"].as_str().unwrap().len(), 64);

    let again = of(&["--kl", &saved, "--csv", &csv]);
    assert_eq!(again["perplexity"], found["perplexity"]);
    assert_eq!(again["same_top"].as_f64(), Some(1.0));
    // Only the rounding to 16-bit codes differs.
    assert!(
        again["kl_divergence_max"].as_f64().unwrap() < 1e-4,
        "{again}"
    );
    let base = again["base_perplexity"].as_f64().unwrap();
    assert!((base / perplexity - 1.0).abs() < 1e-3, "{again}");
    let csv = std::fs::read_to_string(csv).unwrap();
    let (names, values) = csv.split_once('\n').unwrap();
    assert!(names.starts_with("model,file,ctx,windows"), "{names}");
    assert!(values.contains("the built-in model"), "{values}");

    let other = place.file("other.txt", TEXT.repeat(11));
    let other = ["eval", "ppl", &other.display().to_string(), "--kl", &saved].map(String::from);
    place
        .run(&other)
        .failed(2, &["saved.logits", "another text"]);
    let text_as_base = ["eval", "ppl", &text, "--kl", &text];
    place.run(text_as_base).failed(2, &["text.txt", "_logits_"]);
    place
        .run(["eval", "ppl", &text, "--ctx", "4000"])
        .failed(2, &["--ctx 4000", "two windows"]);
}

#[test]
fn a_long_document_is_read_to_its_end() {
    let place = Workplace::new();
    let text = place.file("text.txt", TEXT.repeat(4)).display().to_string();
    let of = |flags: &[&str]| {
        let words = ["eval", "bpb", &text, "--json"].into_iter();
        let outcome = place.run(words.chain(flags.iter().copied())).succeeded();
        outcome.json()["bytes"].as_u64().unwrap()
    };
    // Each piece's first token is not predicted.
    let (whole, pieces) = (of(&[]), of(&["--tokens", "16"]));
    assert_eq!(whole, TEXT.len() as u64 * 4);
    assert!(
        pieces > whole * 7 / 10 && pieces < whole,
        "{pieces} {whole}"
    );
}

#[test]
fn the_likely_answer_is_given() {
    let place = Workplace::new();
    let lines = [
        r#"{"question":"What is the capital of France?","choices":{"text":["Paris","zqxj vvk wq"],"label":["A","B"]},"answerKey":"A"}"#,
        r#"{"activity_label":"Cooking","ctx":"She puts the pan on the stove and","endings":["cooks the meal.","xq zzz vkk jjj qq."],"label":0}"#,
    ];
    let file = place.file("questions.jsonl", lines.join("\n"));
    let file = file.display().to_string();
    let found = place.run(["eval", "choice", &file, "--json"]).succeeded();
    let found = found.json();
    assert_eq!(
        (found["questions"].as_u64(), found["acc"].as_f64()),
        (Some(2), Some(1.0))
    );
    let bad = place.file("bad.jsonl", "{\"question\":1}");
    let bad = bad.display().to_string();
    place
        .run(["eval", "choice", &bad])
        .failed(2, &["bad.jsonl", "line 1", "answerKey"]);
}
