//! An internal part of the crate `waterline`, without a stable interface: the source text of its CUDA files, including those of number
//! formats. The texts take 400 kB, which sessions on a CPU never read, so they are stored deflated and inflated all at once when the
//! first kernel is generated.

use std::sync::LazyLock;

/// Path and length of each file, in the order of the concatenated texts.
static TABLE: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/texts.rs"));
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/texts"));

static TEXTS: LazyLock<String> = LazyLock::new(|| {
    let bytes = miniz_oxide::inflate::decompress_to_vec(DEFLATED).expect("what the build wrote");
    String::from_utf8(bytes).expect("CUDA files are text")
});

/// A CUDA file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct File(usize);

/// Returns the file at `path` in `runtime/compute/src` or `quant/src`, separated by `/`. In a constant, a wrong path does not compile.
///
/// # Panics
/// If the file does not exist.
pub const fn file(path: &str) -> File {
    let mut index = 0;
    while index < TABLE.len() {
        if is_same(TABLE[index].0.as_bytes(), path.as_bytes()) {
            return File(index);
        }
        index += 1;
    }
    panic!("there is no such CUDA file")
}

/// Like `==`, which is not available in constants.
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut same = 0;
    while same < a.len() && same < b.len() && a[same] == b[same] {
        same += 1;
    }
    same == a.len() && same == b.len()
}

impl File {
    /// The file's text, without comments and indentation.
    pub fn text(self) -> &'static str {
        let start: usize = TABLE[..self.0].iter().map(|(_, length)| length).sum();
        &TEXTS[start..][..TABLE[self.0].1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_its_file_without_comments_and_indentation() {
        for &(path, _) in TABLE {
            let folders = ["/../compute/src/", "/../../quant/src/"];
            let places =
                folders.map(|folder| format!("{}{folder}{path}", env!("CARGO_MANIFEST_DIR")));
            let mut texts = places
                .iter()
                .filter_map(|place| std::fs::read_to_string(place).ok());
            let text = texts.next().expect("a file");
            assert!(texts.next().is_none(), "{path} is in both folders");
            assert_eq!(file(path).text().lines().count(), text.lines().count());
            for (found, line) in file(path).text().lines().zip(text.lines()) {
                let rest = line
                    .trim_start()
                    .strip_prefix(found)
                    .expect("the beginning of the line");
                assert!(rest.trim_start().is_empty() || rest.trim_start().starts_with("//"));
            }
        }
        assert!(TABLE.len() > 30);
    }
}
