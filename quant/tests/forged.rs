//! Forged files of several parts and of packed numbers: parts that claim what they do not have, scales and codes that fit nothing, each
//! bit turned.

mod stored;

use std::path::{Path, PathBuf};

use stored::{Stored, safetensors};
use waterline_quant::gguf::{Gguf, NewTensor, Value, Writer};
use waterline_quant::safetensors::Checkpoint;
use waterline_quant::{F32, FileAccess};

/// A part of a split file: its keys, and one tensor.
fn write_part(path: &Path, keys: &[(&str, Value)], tensor: &str) {
    let keys: Vec<_> = keys
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let tensor = NewTensor {
        name: tensor.into(),
        format: &F32,
        shape: vec![2],
    };
    let mut writer = Writer::create(path, &keys, &[tensor]).expect("a file");
    writer.write_tensor(&[0; 8]).expect("data");
    writer.finish().expect("a whole file");
}

fn numbers(number: u64, count: u64) -> [(&'static str, Value); 2] {
    [
        ("split.no", Value::U64(number)),
        ("split.count", Value::U64(count)),
    ]
}

fn refused(path: &Path) -> String {
    [FileAccess::Map, FileAccess::Copy]
        .map(|access| Gguf::open_by(path, access).err().expect("a refusal"))
        .map(|error| error.to_string())
        .join("\n")
}

#[test]
fn parts_that_are_claimed_and_not_there_cost_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |count: u64| folder.path().join(format!("m-00001-of-{count:05}.gguf"));
    for count in [2, 99_999] {
        write_part(&path(count), &numbers(0, count), "a");
        let said = refused(&path(count));
        let missing = format!("m-00002-of-{count:05}.gguf");
        assert!(said.contains(&missing), "{said}");
    }
    for (number, count) in [(0, 100_000), (0, u64::MAX), (2, 2), (u64::MAX, 3)] {
        write_part(&path(2), &numbers(number, count), "a");
        let said = refused(&path(2));
        assert!(said.contains("split.no"), "{number} of {count}: {said}");
    }
    // A number that is none makes a file of one part.
    write_part(&path(2), &[("split.count", Value::from("2"))], "a");
    assert!(Gguf::open(path(2)).is_ok());
}

#[test]
fn a_later_part_is_checked_like_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |part: u64| folder.path().join(format!("m-{part:05}-of-00002.gguf"));
    let second = |bytes: &[u8], length: u64| {
        std::fs::write(path(2), bytes).expect("a file");
        let file = std::fs::File::options().write(true).open(path(2));
        let file = file.expect("a file");
        file.set_len(length.max(bytes.len() as u64))
            .expect("a hole");
        let said = Gguf::open(path(1)).err().expect("a refusal").to_string();
        assert!(said.contains("m-00002-of-00002.gguf"), "{said}");
        said
    };
    write_part(&path(1), &numbers(0, 2), "a");
    let header = |tensors: u64, keys: u64| {
        let version = 3u32.to_le_bytes();
        let parts: [&[u8]; 4] = [
            b"GGUF",
            &version,
            &tensors.to_le_bytes(),
            &keys.to_le_bytes(),
        ];
        parts.concat()
    };
    // Counts that a hole could hold reserve nothing.
    let said = second(&header(0, (12 << 30) / 13 - 2), 12 << 30);
    assert!(said.contains("metadata count"), "{said}");
    let said = second(&header((12 << 30) / 24 - 1, 0), 12 << 30);
    assert!(said.contains("tensor count"), "{said}");
    assert!(second(b"", 0).contains("four bytes"));
    assert!(second(b"GGUF", 0).contains("version"));
    // Numbers of no part, and of a file of more of them.
    for keys in [numbers(0, 2), numbers(1, 3), numbers(7, 2)] {
        write_part(&path(2), &keys, "b");
        let bytes = std::fs::read(path(2)).expect("a file");
        let said = second(&bytes, 0);
        assert!(said.contains("expected part 1 of 2"), "{said}");
    }
    // A mended first part describes them all.
    write_part(&path(2), &numbers(1, 2), "b");
    let count = |count: u64| ("split.tensors.count", Value::U64(count));
    for wrong in [0, 1, 3, u64::MAX] {
        let keys = [&numbers(0, 2)[..], &[count(wrong)]].concat();
        write_part(&path(1), &keys, "a");
        let said = refused(&path(1));
        assert!(said.contains("found 2 in 2 parts"), "{said}");
    }
    write_part(&path(1), &[&numbers(0, 2)[..], &[count(2)]].concat(), "a");
    assert_eq!(Gguf::open(path(1)).expect("a file").tensors().len(), 2);
}

/// Reads all that a file has, or says why not.
fn use_everything(folder: &Path, bytes: &[u8]) -> Result<usize, String> {
    let path: PathBuf = folder.join("model.safetensors");
    std::fs::write(path, bytes).expect("a file");
    let checkpoint = Checkpoint::open(folder).map_err(|error| error.to_string())?;
    let mut numbers = 0;
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).map_err(|error| error.to_string())?;
        numbers += tensor.to_f32().len();
    }
    Ok(numbers)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// FP8 by blocks, NVFP4 of two makers, integers of four bits with zero points.
fn packed() -> Vec<Stored<'static>> {
    let shape = |shape: [i64; 2]| shape.iter().flat_map(|n| n.to_le_bytes()).collect();
    vec![
        ("a.weight", "F8_E4M3", &[4, 3], vec![0x38; 12]),
        ("a.weight_scale_inv", "F32", &[2, 1], floats(&[2.0, 0.5])),
        ("b.weight", "U8", &[1, 8], vec![0x10; 8]),
        ("b.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("b.weight_scale_2", "F32", &[], floats(&[0.25])),
        ("c.weight_packed", "U8", &[1, 8], vec![0x32; 8]),
        ("c.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("c.weight_global_scale", "F32", &[1], floats(&[4.0])),
        ("d.weight_packed", "I32", &[1, 1], vec![0x10; 4]),
        ("d.weight_scale", "F32", &[1, 1], floats(&[1.0])),
        ("d.weight_zero_point", "I32", &[1, 1], vec![3, 0, 0, 0]),
        ("d.weight_shape", "I64", &[2], shape([1, 7])),
    ]
}

#[test]
fn every_turned_bit_of_packed_numbers_is_refused_or_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = safetensors(&packed());
    assert_eq!(use_everything(folder.path(), &whole), Ok(12 + 16 + 16 + 7));
    let (mut accepted, mut refused) = (0, 0);
    let mut bytes = whole.clone();
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        match use_everything(folder.path(), &bytes) {
            Ok(_) => accepted += 1,
            Err(said) => {
                refused += 1;
                assert!(said.len() < 2_000, "bit {bit}: {} bytes", said.len());
            }
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(accepted > 100 && refused > 1_000, "{accepted}, {refused}");
    for length in 0..whole.len() {
        let cut = use_everything(folder.path(), &whole[..length]);
        assert!(cut.is_err(), "{length} of {} bytes", whole.len());
    }
}

#[test]
fn packed_numbers_without_their_other_parts_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = packed();
    for missing in 0..all.len() {
        let mut rest = all.clone();
        let (name, ..) = rest.remove(missing);
        // FP8 without scales is plain FP8; without zero points the middle is zero; a weight alone is missed by its model.
        let may = [
            "a.weight",
            "a.weight_scale_inv",
            "b.weight",
            "c.weight_packed",
            "d.weight_zero_point",
        ];
        let said = use_everything(folder.path(), &safetensors(&rest));
        assert_eq!(said.is_ok(), may.contains(&name), "{name}: {said:?}");
    }
    for (name, wrong) in [
        ("b.weight_scale_2", f32::NAN),
        ("b.weight_scale_2", f32::INFINITY),
        ("c.weight_global_scale", 0.0),
    ] {
        let mut forged = all.clone();
        let tensor = forged.iter_mut().find(|tensor| tensor.0 == name);
        tensor.expect("a tensor").3 = floats(&[wrong]);
        let said = use_everything(folder.path(), &safetensors(&forged)).expect_err(name);
        assert!(said.contains("a finite number"), "{said}");
    }
    // Sizes whose product wraps, in every place that has one.
    for (name, wrong) in [
        ("d.weight_shape", [1i64 << 32, 1 << 32]),
        ("d.weight_shape", [i64::MAX, 2]),
        ("d.weight_shape", [-1, -7]),
    ] {
        let mut forged = all.clone();
        let tensor = forged.iter_mut().find(|tensor| tensor.0 == name);
        tensor.expect("a tensor").3 = wrong.iter().flat_map(|n| n.to_le_bytes()).collect();
        let said = use_everything(folder.path(), &safetensors(&forged));
        assert!(said.is_err(), "{wrong:?}: {said:?}");
    }
}
