//! Files named in comments exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of sources; those of builds, environments and data hold no comments.
const FOLDERS: [&str; 5] = ["quant", "runtime", "ffi", "tools", "tests"];
const SOURCES: [&str; 4] = ["rs", "cu", "h", "hpp"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || ["target", "__pycache__"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        collect(&root().join(folder), &mut found);
    }
    found
}

fn is_source(path: &Path) -> bool {
    let end = path.extension().unwrap_or_default().to_string_lossy();
    SOURCES.contains(&&*end)
}

/// Returns the comments of a file and the number of their first lines. Consecutive comment lines
/// form one comment.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate() {
        let comment = line.split_once("//");
        // A URL in a string is not a comment.
        let comment = comment.filter(|(code, _)| !code.ends_with(':') && !code.contains('"'));
        let Some((code, comment)) = comment else {
            goes_on = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let is_alone = code.trim().is_empty();
        match found.last_mut() {
            Some((_, text)) if goes_on && is_alone => *text += &format!(" {comment}"),
            _ => found.push((number + 1, comment.into())),
        }
        goes_on = is_alone;
    }
    found
}

/// Returns the names of this repository's files in a comment: Rust and CUDA sources, and scripts.
fn named_files(comment: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let words = comment.split(move |c: char| !is_part(c));
    let words = words.map(|word| word.trim_matches('.').trim_start_matches("../"));
    words.filter(|word| {
        let end = word.rsplit_once('.');
        end.is_some_and(|(name, end)| {
            ["rs", "cu", "sh"].contains(&end) && name.contains(|c: char| c.is_lowercase())
        })
    })
}

#[test]
fn files_named_in_comments_exist() {
    let files = files();
    let exists = |name: &str| files.iter().any(|path| path.ends_with(name));
    let (mut named, mut wrong) = (0, Vec::new());
    for path in files.iter().filter(|path| is_source(path)) {
        let text = fs::read_to_string(path).expect("text");
        for (line, comment) in comments(&text) {
            for name in named_files(&comment) {
                named += 1;
                if !exists(name) {
                    wrong.push(format!("{}:{line}: {name}", path.display()));
                }
            }
        }
    }
    assert!(named > 100, "{named} names");
    assert!(wrong.is_empty(), "no such files:\n{}", wrong.join("\n"));
}

#[test]
fn a_stale_name_is_found() {
    let text =
        "// As in gone.rs and\n// kernel.rs.\nlet a = 1; // A number.\nlet b = \"https://x.rs\";\n";
    let found = comments(text);
    assert_eq!(found.len(), 2);
    let names: Vec<&str> = named_files(&found[0].1).collect();
    assert_eq!(names, ["gone.rs", "kernel.rs"]);
}
