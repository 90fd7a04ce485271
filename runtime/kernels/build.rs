//! Collects the `.cu` files and stores their texts deflated, without comments.

mod deflated;

use std::fs;
use std::path::{Path, PathBuf};

/// Source folders of the runtime and of the number formats.
const FOLDERS: [&str; 2] = ["../compute/src", "../../quant/src"];

fn main() {
    let mut texts = Vec::new();
    for folder in FOLDERS {
        println!("cargo::rerun-if-changed={folder}");
        let mut files = Vec::new();
        collect(Path::new(folder), &mut files);
        files.sort();
        for file in &files {
            let text = fs::read_to_string(file).expect("a file that was listed");
            let text = without_comments_and_indentation(&text);
            let path = file.strip_prefix(folder).expect("a file of the folder");
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            texts.push((parts.join("/"), text));
        }
    }
    deflated::write("texts", texts);
}

/// Keeps line numbers, so that compiler messages point to the right lines. No string literal in a kernel contains two slashes.
fn without_comments_and_indentation(text: &str) -> String {
    let code = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.trim().to_string() + "\n"
    };
    text.lines().map(code).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the runtime") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "cu") {
            files.push(path);
        }
    }
}
