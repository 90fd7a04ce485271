//! Texts of CUDA files, with the definitions of the types that they share with the host.

use waterline_kernels::{File, file};

use crate::abi::{Define, Definitions};

/// A CUDA file.
#[derive(Clone, Copy)]
pub struct Source {
    file: File,
    /// The types of the file that Rust defines.
    types: &'static [Define],
}

impl Source {
    /// Finds the file of this path, in a constant: see [`file`].
    ///
    /// # Panics
    /// If the file does not exist.
    pub const fn new(path: &str, types: &'static [Define]) -> Self {
        Source {
            file: file(path),
            types,
        }
    }
}

/// A text for NVRTC.
#[derive(Default)]
pub struct Text {
    definitions: Definitions,
    files: Vec<File>,
}

impl Text {
    /// Adds files that the text does not contain yet, each after the definitions of its types.
    pub fn add<'a>(&mut self, sources: impl IntoIterator<Item = &'a Source>) {
        for source in sources {
            if self.files.contains(&source.file) {
                continue;
            }
            self.files.push(source.file);
            for define in source.types {
                define(&mut self.definitions);
            }
            self.push(source.file.text());
        }
    }

    /// Adds a text.
    pub fn push(&mut self, text: &str) {
        self.definitions.text += text;
    }

    /// Returns the whole text.
    pub fn into_string(self) -> String {
        self.definitions.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::DeviceType;
    use crate::cuda::schedule::Rows;

    #[test]
    fn a_file_follows_the_types_that_it_takes_once() {
        let prelude = Source::new("cuda/prelude.cu", &[Rows::define]);
        let mut text = Text::default();
        text.add([&prelude, &prelude]);
        let text = text.into_string();
        let places = |part: &str| -> Vec<usize> {
            text.match_indices(part).map(|(place, _)| place).collect()
        };
        let (defined, used) = (places("struct Rows {"), places("Rows::token(int t)"));
        assert_eq!((defined.len(), used.len()), (1, 1));
        assert!(defined < used);
    }
}
