//! Split GGUF files, named as `gguf-split` names them: `model-00001-of-00003.gguf`. The first part has the metadata. Each part has some of
//! the tensors, its part number and the number of parts.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::{Gguf, Value, read};
use crate::error::{Error, Result};
use crate::storage::{Bytes, FileAccess};

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";
/// Largest number of parts: part numbers have five digits.
const MAX_PARTS: u64 = 99_999;

/// Opens a file, or all parts of a split file.
pub(super) fn open(path: &Path, access: FileAccess) -> Result<Gguf> {
    let read_in = |path: &Path| -> Result<Gguf> {
        Gguf::parse(Bytes::open_file(path, access)?, path.display().to_string())
    };
    let gguf = read_in(path)?;
    let number = |gguf: &Gguf, key: &str| gguf.get(key).and_then(Value::as_u64);
    let count = number(&gguf, COUNT).unwrap_or(1);
    if count <= 1 {
        return Ok(gguf);
    }
    let invalid = |item: &str, found: String, expected: String| {
        Err(Error::invalid(
            &path.display().to_string(),
            item,
            found,
            expected,
        ))
    };
    let own = number(&gguf, NUMBER).unwrap_or(0);
    if count > MAX_PARTS || own >= count {
        let found = format!("part {own} of {count}");
        return invalid("split.no", found, format!("a part of at most {MAX_PARTS}"));
    }
    let Some(names) = PartNames::new(path, own, count) else {
        let expected = format!(
            "NAME-{:05}-of-{count:05}.gguf, the name pattern for parts of a file",
            own + 1
        );
        return invalid("the name", "another name".into(), expected);
    };
    let mut whole = match own {
        0 => gguf,
        _ => read_in(&names.part(0))?,
    };
    let tensors = number(&whole, TENSORS);
    for part in 1..count {
        let path = names.part(part);
        let bytes = Bytes::open_file(&path, access)?;
        let file = path.display().to_string();
        let found = read::parse(&bytes, &file)?;
        let said = |key: &str| {
            let value = found.metadata.iter().find(|(name, _)| name == key);
            value.and_then(|(_, value)| value.as_u64())
        };
        if (said(NUMBER), said(COUNT)) != (Some(part), Some(count)) {
            let found = format!("part {:?} of {:?}", said(NUMBER), said(COUNT));
            return Err(Error::invalid(
                &file,
                "split.no",
                found,
                format!("part {part} of {count}"),
            ));
        }
        whole.add(bytes, found.data, found.tensors)?;
    }
    match tensors {
        Some(tensors) if tensors != whole.tensors.len() as u64 => {
            let found = format!("{} tensors in {count} parts", whole.tensors.len());
            invalid(TENSORS, found, tensors.to_string())
        }
        _ => Ok(whole),
    }
}

impl Gguf {
    /// Adds a block of another file: its tensors whose names begin with `tensors`, and its keys that begin with `keys`. These keys replace
    /// keys of this file.
    pub fn with_block(mut self, other: Gguf, keys: &str, tensors: &str) -> Result<Gguf> {
        for (key, value) in other.metadata {
            match self.keys.get(&key) {
                _ if !key.starts_with(keys) => {}
                Some(&place) => self.metadata[place].1 = value,
                None => {
                    self.keys.insert(key.clone(), self.metadata.len());
                    self.metadata.push((key, value));
                    self.used_keys.push(AtomicBool::default());
                }
            }
        }
        let (mut rest, mut before) = (other.tensors.into_iter(), 0);
        for part in other.files {
            let own = rest.by_ref().take(part.tensors_end - before);
            let block = own
                .filter(|tensor| tensor.name.starts_with(tensors))
                .collect();
            self.add(part.bytes, part.data, block)?;
            before = part.tensors_end;
        }
        Ok(self)
    }
}

/// The file names of the parts of a split file.
struct PartNames {
    /// The path up to the part number.
    start: PathBuf,
    count: u64,
}

impl PartNames {
    /// Returns the names of all parts, if `path` is named as part `number` of `count`.
    fn new(path: &Path, number: u64, count: u64) -> Option<PartNames> {
        let name = path.file_name()?.to_str()?;
        let end = format!("-{:05}-of-{count:05}.gguf", number + 1);
        let start = path.with_file_name(name.strip_suffix(&end)?);
        Some(PartNames { start, count })
    }

    fn part(&self, number: u64) -> PathBuf {
        let mut path = self.start.clone().into_os_string();
        path.push(format!("-{:05}-of-{:05}.gguf", number + 1, self.count));
        path.into()
    }
}
