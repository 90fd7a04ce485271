//! The crates of the runtime and their modules form layers: each may import only from layers below.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, from top to bottom.
const LAYERS: &[&str] = &[
    "session",
    "engine",
    "token_ids",
    "loaded",
    "constraint",
    "grammar_limits",
    "grammar",
    "arch",
    "model",
    "feed_forward",
    "mixers",
    "lowering",
    "text",
    "cancel",
    "config",
    "program",
    "ops",
    "cuda",
    "functions",
    "op_time",
    "operands",
    "sampler",
    "cpu",
    "state",
    "weights",
    "abi",
    "error",
];

/// The folders and files of `cuda`, from top to bottom.
const CUDA: &[&str] = &[
    "batch",
    "decode",
    "device",
    "source",
    "token",
    "gemm",
    "schedule",
    "emulator",
    "host_logits",
    "driver",
];

/// The crates, from top to bottom, and their folders.
const CRATES: [(&str, &str); 7] = [
    ("waterline", "."),
    ("waterline-models", "models"),
    ("waterline-text", "text"),
    ("waterline-compute", "compute"),
    ("waterline-error", "error"),
    ("waterline-kernels", "kernels"),
    ("waterline-quant", "../quant"),
];

/// Folders of the crates whose modules form layers.
const LAYERED: [&str; 3] = [".", "models", "compute"];

/// Names in the crate roots that re-export crates below or their parts.
const FROM_BELOW: [&str; 3] = ["text", "cancel", "error"];

/// Methods that the standard library has too.
const STANDARD: [&str; 3] = ["load", "metadata", "split"];

/// Files and folders that are compiled only for tests.
const TEST_FILES: &[&str] = &["tests", "rig"];

fn crate_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_test = TEST_FILES.contains(&&*name) || name.ends_with("_tests");
        if is_test {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the code of a file without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("\nmod tests {").next();
    let lines = text.unwrap_or_default().lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the names that follow `crate::` or the name of a layered crate, including those in
/// braces.
fn imports(code: &str) -> BTreeSet<String> {
    let code = code.replace("waterline_models::", "crate::");
    let code = code.replace("waterline_compute::", "crate::");
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let first = |text: &str| -> String {
            let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
            text.trim_start().chars().take_while(is_part).collect()
        };
        match after.strip_prefix('{') {
            Some(list) => {
                let list = list.split('}').next().unwrap_or_default();
                names.extend(list.split(',').map(first));
            }
            None => {
                names.insert(first(after));
            }
        }
    }
    names
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|&name| name == module)
}

/// Returns the imports of `code`, in the module `own`, that do not lead to a module below.
fn upward(own: &str, code: &str) -> Vec<String> {
    let rank = layer(own);
    let is_below = |name: &str| layer(name) > rank || name == own;
    let upward = |name: &String| !is_below(name) || layer(name).is_none();
    imports(code).into_iter().filter(upward).collect()
}

#[test]
fn modules_import_from_below() {
    let mut paths = Vec::new();
    for folder in LAYERED {
        let sources = crate_folder(folder).join("src");
        let mut found = Vec::new();
        files(&sources, &mut found);
        paths.extend(found.into_iter().map(|path| (path, sources.clone())));
    }
    assert!(paths.len() > 250, "{} files", paths.len());
    let mut wrong = Vec::new();
    for (path, sources) in paths {
        let file = path.strip_prefix(sources).expect("a file of src");
        let own = file.iter().next().unwrap_or_default().to_string_lossy();
        let own = own.trim_end_matches(".rs");
        // The compiler rejects private names of other crates, and a crate's root has no other
        // imports.
        if own == "lib" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let code = code(&text);
        // In a module's top file, `super` is the crate.
        let is_top = file.components().count() == 1 || file.ends_with(format!("{own}/mod.rs"));
        if is_top && code.contains("super::") {
            wrong.push(format!("{}: super", file.display()));
        }
        let names = upward(own, &code).into_iter();
        wrong.extend(names.map(|name| format!("{}: crate::{name}", file.display())));
    }
    assert!(
        wrong.is_empty(),
        "imports from above:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_gpu_backend_imports_from_below() {
    let sources = crate_folder("compute").join("src/cuda");
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    files(&sources, &mut found);
    let rank = |module: &str| CUDA.iter().position(|&name| name == module);
    for path in found {
        let file = path.strip_prefix(&sources).expect("a file of cuda");
        let own = file.iter().next().unwrap_or_default().to_string_lossy();
        let own = own.trim_end_matches(".rs");
        // The root re-exports the public parts.
        if own == "mod" {
            continue;
        }
        let own_rank = rank(own);
        assert!(own_rank.is_some(), "{own} has no layer");
        let code = code(&fs::read_to_string(&path).expect("text"));
        let is_top = file.components().count() == 1 || file.ends_with(format!("{own}/mod.rs"));
        if is_top && code.contains("super::") {
            wrong.push(format!("{}: super", file.display()));
        }
        // Only the names that follow `crate::cuda::`.
        let code = code
            .replace("crate::cuda::", "cuda!")
            .replace("crate::", "");
        let names = imports(&code.replace("cuda!", "crate::")).into_iter();
        let upward = names.filter(|name| name != own && rank(name) <= own_rank);
        wrong.extend(upward.map(|name| format!("{}: {name}", file.display())));
    }
    assert!(
        wrong.is_empty(),
        "imports from above:\n{}",
        wrong.join("\n")
    );
}

/// Returns the type that an `impl` block without a trait extends, and the type that a definition defines.
fn type_of<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let line = line.trim_start_matches("pub ");
    let line = line.trim_start_matches("pub(crate) ");
    let line = line.trim_start_matches("pub(super) ");
    let rest = keywords
        .iter()
        .find_map(|keyword| line.strip_prefix(keyword))?;
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let name = rest.split(|c| !is_part(c)).next()?;
    (!name.is_empty() && !rest.contains(" for ")).then_some(name)
}

/// The code of the files of one module.
struct Module {
    name: String,
    /// Number of the crate.
    folder: usize,
    code: String,
}

/// Returns the calls of methods that a module above the caller adds to a type: `caller: method (module)`. `modules` are in order, from top
/// to bottom.
fn upward_calls(modules: &[Module]) -> Vec<String> {
    let defines = |module: &Module, name: &str| {
        let kinds = ["struct ", "enum ", "trait "];
        let mut lines = module.code.lines();
        lines.any(|line| type_of(line, &kinds) == Some(name))
    };
    let mut wrong = Vec::new();
    for (rank, module) in modules.iter().enumerate() {
        let below = &modules[rank + 1..];
        let mut extended = None;
        for line in module.code.lines() {
            if line.starts_with("impl") {
                let generic = line.replacen("impl<'a>", "impl", 1);
                let name = type_of(&generic, &["impl "]).map(String::from);
                extended = name.filter(|name| {
                    below
                        .iter()
                        .any(|other| other.folder == module.folder && defines(other, name))
                });
            }
            if line == "}" {
                extended = None;
            }
            let method = extended
                .as_ref()
                .and_then(|_| line.split_once("fn "))
                .and_then(|(_, rest)| rest.split(['(', '<']).next());
            let Some(method) = method else { continue };
            if STANDARD.contains(&method) {
                continue;
            }
            let own = [format!("fn {method}("), format!("fn {method}<")];
            let is_own = |other: &Module| own.iter().any(|own| other.code.contains(own));
            for (place, other) in below.iter().enumerate() {
                let calls = other.code.contains(&format!(".{method}("));
                if calls && !below[place..].iter().any(is_own) {
                    wrong.push(format!("{}: {method} ({})", other.name, module.name));
                }
            }
        }
    }
    wrong
}

/// Reads the modules of a folder that `names` lists.
fn modules(number: usize, folder: &Path, names: &[&str]) -> Vec<Module> {
    let read = |name: &&str| {
        let mut found = Vec::new();
        let (file, folder) = (folder.join(format!("{name}.rs")), folder.join(name));
        found.extend(file.exists().then_some(file));
        if folder.exists() {
            files(&folder, &mut found);
        }
        let texts = found
            .iter()
            .map(|path| code(&fs::read_to_string(path).expect("text")));
        Module {
            name: name.to_string(),
            folder: number,
            code: texts.collect::<Vec<_>>().join("\n}\n"),
        }
    };
    names.iter().map(read).collect()
}

#[test]
fn methods_are_called_from_above() {
    let mut all = Vec::new();
    for (number, folder) in LAYERED.iter().enumerate() {
        all.extend(modules(number, &crate_folder(folder).join("src"), LAYERS));
    }
    let cuda = crate_folder("compute").join("src/cuda");
    let mut wrong = upward_calls(&all);
    wrong.extend(upward_calls(&modules(0, &cuda, CUDA)));
    assert!(wrong.is_empty(), "calls upward:\n{}", wrong.join("\n"));
}

#[test]
fn an_upward_call_is_found() {
    let module = |name: &str, code: &str| Module {
        name: name.into(),
        folder: 0,
        code: code.into(),
    };
    let above =
        "impl Calls<'_> {\n    pub fn fuse(&self) {}\n}\nimpl Other {\n    fn other(&self) {}\n}\n";
    let below = "pub struct Calls<'a> {\n}\nfn f(calls: &Calls, x: &X) {\n    calls.fuse();\n    x.other();\n}\n";
    let found = upward_calls(&[module("decode", above), module("gemm", below)]);
    assert_eq!(found, ["gemm: fuse (decode)"]);
}

#[test]
fn every_module_has_a_layer() {
    let mut modules = BTreeSet::from(FROM_BELOW.map(String::from));
    for folder in LAYERED {
        let text = fs::read_to_string(crate_folder(folder).join("src/lib.rs")).expect("a root");
        let text = text.replace("#[cfg(test)]\nmod ", "test ");
        let names = text.lines().filter_map(|line| {
            let line = line.trim_start_matches("pub ").strip_prefix("mod ")?;
            // A module in braces is a list of names.
            line.strip_suffix(';').map(String::from)
        });
        modules.extend(names);
    }
    let layers: BTreeSet<String> = LAYERS.iter().map(|name| name.to_string()).collect();
    assert_eq!(modules, layers);
}

#[test]
fn crates_depend_on_those_below() {
    let mut seen = 0;
    for (rank, (name, folder)) in CRATES.iter().enumerate() {
        let manifest = crate_folder(folder).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        let lines = manifest
            .lines()
            .skip_while(|line| *line != "[dependencies]");
        let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
        for other in names.filter(|name| name.starts_with("waterline")) {
            let below = CRATES.iter().position(|(known, _)| *known == other);
            assert!(below > Some(rank), "{name} depends on {other}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen} dependencies");
}

#[test]
fn an_upward_import_is_found() {
    let code = code("use crate::{cpu::Pool, session};\nuse crate::state::Arena; // crate::arch\n");
    assert_eq!(upward("engine", &code), ["session"]);
    assert_eq!(upward("state", &code), ["cpu", "session"]);
    assert_eq!(upward("cpu", "crate::Result"), ["Result"]);
    assert_eq!(upward("ops", "waterline_models::arch::x"), ["arch"]);
}
