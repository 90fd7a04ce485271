//! Collects the runtime's `.cu` files: their paths and lengths as Rust, and their texts, one behind the other, deflated.

use std::fs;
use std::path::{Path, PathBuf};

const SOURCES: &str = "../src";
const LEVEL: u8 = 10;

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}");
    let mut files = Vec::new();
    collect(Path::new(SOURCES), &mut files);
    files.sort();
    let (mut table, mut texts) = (String::new(), Vec::new());
    for file in &files {
        let text = fs::read(file).expect("a file that was listed");
        let path = file.strip_prefix(SOURCES).expect("a file of the folder");
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        table += &format!("({:?}, {}),\n", parts.join("/"), text.len());
        texts.extend(text);
    }
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let write = |name: &str, bytes: &[u8]| {
        fs::write(out.join(name), bytes).expect("the folder can be written");
    };
    write("table.rs", format!("&[{table}]").as_bytes());
    write(
        "texts",
        &miniz_oxide::deflate::compress_to_vec(&texts, LEVEL),
    );
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
