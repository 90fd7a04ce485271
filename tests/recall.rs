//! The models of `tests/models` recall as many values as they do in PyTorch, where they were trained.

use std::path::PathBuf;
use std::process::Command;

/// The allowed difference in accuracy, in percentage points.
const LIMIT: f64 = 0.5;

/// A row's setting in a table of accuracies: task, keys, length.
type Setting = (String, usize, usize);

/// Returns the rows of one model in a table: setting, questions, accuracy in percent.
fn accuracies(csv: &str, model: &str) -> Vec<(Setting, usize, f64)> {
    let mut lines = csv.lines();
    let header = lines.next().expect("a header");
    assert!(header.starts_with("model,task,keys,length,sequences,questions,right,accuracy"));
    lines
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|fields| fields[0] == model)
        .map(|fields| {
            let number = |i: usize| fields[i].parse().expect("a number");
            let accuracy: f64 = fields[7].parse().expect("an accuracy");
            let setting = (fields[1].to_string(), number(2), number(3));
            (setting, number(5), 100.0 * accuracy)
        })
        .collect()
}

#[test]
fn trained_models_recall_what_they_recalled_in_pytorch() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models");
    let recorded = std::fs::read_to_string(folder.join("pytorch.csv")).expect("the recorded table");
    let scratch = tempfile::tempdir().expect("a folder");
    let mut models: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the models")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
        .collect();
    models.sort();
    assert_eq!(models.len(), 9);
    for path in models {
        let model = path.file_stem().expect("a name").to_string_lossy();
        let expected = accuracies(&recorded, &model);
        let table = scratch.path().join("recall.csv");
        let output = Command::new(env!("CARGO_BIN_EXE_waterline"))
            .args(["eval", "recall", "--task", "mqar,joint"])
            .args(["--keys", "16", "--threads", "1", "--csv"])
            .arg(&table)
            .arg(&path)
            .output()
            .expect("waterline runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let table = std::fs::read_to_string(&table).expect("a table");
        let found = accuracies(&table, &model);
        assert_eq!(found.len(), 2, "{table}");
        for (setting, questions, accuracy) in found {
            let (_, asked, in_pytorch) = expected
                .iter()
                .find(|(other, ..)| *other == setting)
                .expect("a recorded setting");
            assert_eq!(questions, *asked);
            assert!(
                (accuracy - in_pytorch).abs() <= LIMIT,
                "{model}, {setting:?}: {accuracy} here, {in_pytorch} in PyTorch"
            );
        }
    }
}
