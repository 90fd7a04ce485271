//! Recognizes paths that are not a model, and suggests the command that leads to one.

use std::io::Read;
use std::path::{Path, PathBuf};

use waterline_quant::gguf::Gguf;

use crate::error::Error;
#[cfg(feature = "pull")]
pub use crate::pull::is_pulled;

/// Python pickles. Opening a pickle runs code, so none is read.
const PICKLES: [&str; 4] = ["bin", "pt", "pth", "ckpt"];
/// Extensions of files in a Hugging Face folder that are easily mistaken for the model.
const PARTS: [&str; 2] = ["safetensors", "json"];

/// Returns `error`, from opening `path`; or, if `path` is recognized as something else, an error with its kind and a remedy.
pub fn explain(path: &Path, error: Error) -> Error {
    match advice(path) {
        Some(reason) => Error::input(path, reason),
        None => error,
    }
}

/// Whether `word` looks like a model rather than text: it exists, it is the name of a downloaded model, or it could be a model's path.
pub fn is_like_a_model(word: &Path) -> bool {
    let text = word.to_string_lossy();
    let known = |kind: &str| kind == "gguf" || is_one_of(kind, &PICKLES) || is_one_of(kind, &PARTS);
    let like_a_path = text.contains(['/', '\\']) || known(&extension(word));
    like_a_path && !text.contains(char::is_whitespace) || word.exists() || is_pulled(&text)
}

/// Whether a word is the name of downloaded models.
#[cfg(not(feature = "pull"))]
pub fn is_pulled(_: &str) -> bool {
    false
}

/// Returns the kind of `path` and the command that helps; `None` if the kind is unknown.
pub fn advice(path: &Path) -> Option<String> {
    if path.is_dir() {
        return about_folder(path);
    }
    if path.is_file() {
        return about_file(path);
    }
    if path.exists() {
        return None;
    }
    let text = path.to_string_lossy();
    if let Some((owner, name)) = hub_name(&text) {
        return Some(about_hub(owner, name));
    }
    Some(if is_like_a_model(path) {
        "no such file or folder".into()
    } else {
        format!(
            "no such file; to complete a text: waterline run {}; to talk: waterline chat",
            quoted(&text)
        )
    })
}

fn about_folder(folder: &Path) -> Option<String> {
    let files = files(folder);
    let tensors = files.iter().any(|file| extension(file) == "safetensors");
    if tensors && folder.join("config.json").exists() {
        return None;
    }
    if let Some(file) = main_gguf(&files) {
        return Some(format!(
            "a folder of GGUF files; give one of them: waterline chat {}",
            quoted_path(file)
        ));
    }
    if tensors {
        let reason = "config.json is not there; download the whole repository: \
                      hf download OWNER/NAME --local-dir NAME";
        return Some(reason.into());
    }
    let mut pickles = files
        .iter()
        .filter(|file| is_one_of(&extension(file), &PICKLES));
    match pickles.next() {
        Some(file) => Some(about_pickle(file, folder)),
        None if folder.join("config.json").exists() => None,
        None => Some(
            "no model is in this folder; expected a GGUF file, or config.json and safetensors"
                .into(),
        ),
    }
}

fn about_file(file: &Path) -> Option<String> {
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let kind = extension(file);
    if is_one_of(&kind, &PICKLES) {
        return Some(about_pickle(file, folder));
    }
    if is_one_of(&kind, &PARTS) {
        let whole = folder.join("config.json").is_file();
        return Some(if whole {
            format!(
                "a part of a Hugging Face folder; give the folder: waterline chat {}",
                quoted_path(folder)
            )
        } else {
            "a part of a Hugging Face folder, without its config.json; download the whole \
                 repository: hf download OWNER/NAME --local-dir NAME"
                .into()
        });
    }
    let Ok(gguf) = Gguf::open(file) else {
        return about_foreign(file);
    };
    let mut names = gguf.tensors().iter().map(|tensor| tensor.name.as_str());
    let is_drafts = names.clone().any(|name| name.contains(".nextn."))
        && !names.any(|name| name.starts_with("blk.0."));
    let part = match gguf.get_str("general.architecture").ok()? {
        "clip" => "the vision part of a model (architecture clip, a projector)",
        _ if is_drafts => "the MTP block of a model, which drafts for it (--mtp)",
        _ => return None,
    };
    let mut others = files(folder);
    others.retain(|other| other.file_name() != file.file_name());
    let model = main_gguf(&others).map_or("MODEL.gguf".into(), |file| quoted_path(file));
    Some(format!(
        "{part}; give the file with the language model: waterline chat {model}"
    ))
}

/// Describes a file of another format; `None` for a GGUF file or an unreadable file.
fn about_foreign(file: &Path) -> Option<String> {
    const MAGIC: &[u8] = b"GGUF";
    let mut start = Vec::new();
    let opened = std::fs::File::open(file).ok()?;
    opened.take(1024).read_to_end(&mut start).ok()?;
    if start.starts_with(MAGIC) {
        return None;
    }
    if let Some((found, expected)) = waterline_quant::failed_download(&start) {
        return Some(format!("{found}; expected {expected}"));
    }
    let expected = "no model; expected a GGUF file or a Hugging Face folder";
    // The last character of the buffer may be cut off.
    let is_cut = |e: std::str::Utf8Error| e.error_len().is_none();
    let is_text = |bytes: &[u8]| {
        !bytes.contains(&0) && std::str::from_utf8(bytes).map_or_else(is_cut, |_| true)
    };
    Some(match start.as_slice() {
        [] => "an empty file; expected a GGUF file or a Hugging Face folder".into(),
        start if is_text(start) => format!(
            "{expected}; to complete the text in it: waterline run -f {}",
            quoted_path(file)
        ),
        _ => expected.into(),
    })
}

fn about_pickle(file: &Path, folder: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let folder = folder.display().to_string();
    let folder = folder.replace('\\', "\\\\").replace('\'', "\\'");
    format!(
        "{name} is a Python pickle, which is not read; make safetensors of it: python -c \"from transformers import \
         AutoModelForCausalLM as M, AutoTokenizer as T; [x.from_pretrained('{folder}').save_pretrained('{folder}-safetensors') \
         for x in (M, T)]\""
    )
}

fn about_hub(owner: &str, name: &str) -> String {
    let (pull, open) = if cfg!(feature = "pull") {
        (
            format!("waterline pull {owner}/{name}"),
            format!("hf:{owner}/{name}"),
        )
    } else {
        (
            format!("hf download {owner}/{name} --local-dir {name}"),
            name.into(),
        )
    };
    format!(
        "no such file or folder; if it is on the Hugging Face Hub: {pull}, then waterline chat {open}"
    )
}

/// Parses owner and name of a repository on the Hugging Face Hub, from `owner/name` or the address of its page.
fn hub_name(text: &str) -> Option<(&str, &str)> {
    const ADDRESSES: [&str; 5] = [
        "https://huggingface.co/",
        "https://hf.co/",
        "hf.co/",
        "hf://",
        "hf:",
    ];
    let mut address = ADDRESSES
        .iter()
        .filter_map(|start| text.strip_prefix(start));
    let (owner, name) = match address.next() {
        Some(rest) => {
            let (owner, rest) = rest.split_once('/')?;
            (owner, rest.split(['/', '?', ':']).next()?)
        }
        // An existing folder was meant as a folder. In other programs, the part after a colon chooses a file.
        None => text
            .split_once('/')
            .filter(|(owner, _)| !Path::new(owner).exists())
            .map(|(owner, name)| (owner, name.split(':').next().unwrap_or(name)))?,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(plain);
    (is_name(owner) && is_name(name) && extension(Path::new(name)) != "gguf")
        .then_some((owner, name))
}

/// Returns the GGUF file that is most likely the language model.
fn main_gguf(files: &[PathBuf]) -> Option<&PathBuf> {
    let name = |file: &Path| {
        file.file_name()
            .map(|name| name.to_string_lossy().to_lowercase())
    };
    let is_projector = |file: &Path| name(file).is_some_and(|name| name.contains("mmproj"));
    // A download that was interrupted at once is empty.
    let is_empty = |file: &Path| std::fs::metadata(file).is_ok_and(|data| data.len() == 0);
    let mut ggufs = files
        .iter()
        .filter(|file| extension(file) == "gguf" && !is_projector(file) && !is_empty(file));
    ggufs.next()
}

/// Lists the files of a folder, sorted; empty if the folder cannot be read.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    files
}

/// Returns the extension of a file name, in lower case.
fn extension(path: &Path) -> String {
    let kind = path.extension().unwrap_or_default();
    kind.to_string_lossy().to_lowercase()
}

fn is_one_of(kind: &str, kinds: &[&str]) -> bool {
    kinds.contains(&kind)
}

/// Quotes `word` for a shell, if necessary.
pub fn quoted(word: &str) -> String {
    let is_separator = |c: char| cfg!(windows) && c == '\\';
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c) || is_separator(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else if cfg!(windows) {
        // cmd.exe has only double quotes.
        format!("\"{}\"", word.replace('"', "\\\""))
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_names_are_known_from_paths() {
        for (text, expected) in [
            ("Qwen/Qwen3.5-0.8B", Some(("Qwen", "Qwen3.5-0.8B"))),
            ("unsloth/X-GGUF:Q4_K_M", Some(("unsloth", "X-GGUF"))),
            (
                "https://huggingface.co/fla-hub/gla-1.3B/tree/main",
                Some(("fla-hub", "gla-1.3B")),
            ),
            ("hf:a/b", Some(("a", "b"))),
            ("hf://a/b", Some(("a", "b"))),
            ("./a/b", None),
            ("../b", None),
            ("/a/b", None),
            ("a/b/c", None),
            ("a/b c", None),
            ("models/file.gguf", None),
            ("src/file", None),
        ] {
            assert_eq!(hub_name(text), expected, "{text}");
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("a/b-c.gguf"), "a/b-c.gguf");
        let (text, nothing) = if cfg!(windows) {
            (r#""it's here""#, r#""""#)
        } else {
            (r"'it'\''s here'", "''")
        };
        assert_eq!(quoted("it's here"), text);
        assert_eq!(quoted(""), nothing);
    }
}
