//! GGUF files in two parts and with all number formats, safetensors files with packed numbers, and importance matrices.

use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};
use waterline_quant::imatrix::Importances;
use waterline_quant::safetensors::Checkpoint;
use waterline_quant::{Activations, Bytes, F32, FORMATS, FileAccess, Matrix, Output};

use super::stored::safetensors;

/// Uses both parts of a file: eight bytes with the length of the first part, then the parts' bytes. If the file opens, every tensor is
/// read.
pub fn split(bytes: &[u8]) -> bool {
    let Some((length, parts)) = bytes.split_first_chunk() else {
        return false;
    };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (first, second) = parts.split_at(length.min(parts.len()));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |part| folder.path().join(format!("m-{part:05}-of-00002.gguf"));
    std::fs::write(path(1), first).expect("a file");
    std::fs::write(path(2), second).expect("a file");
    let opened = Gguf::open_by(path(1), FileAccess::Copy);
    let _ = Gguf::open(path(2));
    opened.is_ok_and(|file| {
        let tensors = file.tensors().iter();
        // A tensor in a format that cannot be decoded here is an error.
        tensors.for_each(|info| drop(file.tensor(&info.name).map(|tensor| tensor.to_f32())));
        true
    })
}

pub fn split_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let part = |number: u64, name: &str| {
        let path = folder.path().join(name);
        let keys = [
            ("split.no", number),
            ("split.count", 2),
            ("split.tensors.count", 2),
        ];
        let keys = keys.map(|(key, value)| (key.to_string(), Value::U64(value)));
        let tensor = NewTensor {
            name: name.into(),
            format: &F32,
            shape: vec![2, 2],
        };
        let mut writer = Writer::create(&path, &keys, &[tensor]).expect("a file");
        writer.write_tensor(&[0x3f; 16]).expect("data");
        writer.finish().expect("a whole file");
        std::fs::read(path).expect("a file")
    };
    let (first, second) = (part(0, "a"), part(1, "b"));
    let length = (first.len() as u64).to_le_bytes();
    vec![[&length[..], &first, &second].concat()]
}

/// Multiplies each tensor of a file with ones.
pub fn formats(bytes: &[u8]) -> bool {
    let Ok(bytes) = Bytes::copy_from(bytes) else {
        return false;
    };
    let Ok(file) = Gguf::parse(bytes, "fuzz") else {
        return false;
    };
    for info in file.tensors() {
        let Ok(tensor) = file.tensor(&info.name) else {
            continue;
        };
        let (rows, cols) = tensor.rows_cols();
        assert_eq!(tensor.to_f32().len(), rows * cols);
        if rows * cols == 0 {
            continue;
        }
        let format = tensor.format;
        let matrix = Matrix::new(format, rows, cols, tensor.data).expect("a matrix");
        let mut x = Activations::new(1, cols).expect("memory");
        x.load(&vec![1.0; cols], 1, cols, format.rounding());
        let mut out = vec![0.0; rows];
        let output = Output::new(&mut out, rows);
        // SAFETY: only one thread.
        unsafe { matrix.mul_rows(0..rows, 0, &x, &output, 0) };
    }
    true
}

/// Returns a file with a tensor in each format.
pub fn formats_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("formats.gguf");
    // Shorter tensors in Q2_0 do not tell the length of their blocks.
    let shape = vec![16, 256];
    let tensors = FORMATS.map(|format| NewTensor {
        name: format.name.into(),
        format,
        shape: shape.clone(),
    });
    let mut writer = Writer::create(&path, &[], &tensors).expect("a file");
    for format in FORMATS {
        let mut blocks = vec![0; format.tensor_bytes(&shape).expect("whole blocks")];
        let numbers: Vec<f32> = (0..16 * 256).map(|i| (i % 17) as f32 - 8.0).collect();
        format.encode_or_imitate(&numbers, &mut blocks);
        writer.write_tensor(&blocks).expect("data");
    }
    writer.finish().expect("a whole file");
    vec![std::fs::read(path).expect("a file")]
}

/// Uses a file of packed numbers, and reads each of its tensors.
pub fn packed(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("model.safetensors"), bytes).expect("a file");
    let Ok(checkpoint) = Checkpoint::open(folder.path()) else {
        return false;
    };
    let read = |name| checkpoint.tensor(name).map(|tensor| tensor.to_f32());
    checkpoint.names().all(|name| read(name).is_ok())
}

/// Returns FP8 in blocks, NVFP4 of two producers, 4-bit integers with zero points, and MXFP4.
pub fn packed_seeds() -> Vec<Vec<u8>> {
    type Stored = (&'static str, &'static str, &'static [usize], Vec<u8>);
    let float = |value: f32| value.to_le_bytes().to_vec();
    let tensors: [Stored; 14] = [
        ("a.weight", "F8_E4M3", &[4, 3], vec![0x38; 12]),
        (
            "a.weight_scale_inv",
            "F32",
            &[2, 1],
            [float(2.0), float(0.5)].concat(),
        ),
        ("b.weight", "U8", &[1, 8], vec![0x10; 8]),
        ("b.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("b.weight_scale_2", "F32", &[], float(0.25)),
        ("c.weight_packed", "U8", &[1, 8], vec![0x32; 8]),
        ("c.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("c.weight_global_scale", "F32", &[1], float(4.0)),
        ("d.weight_packed", "I32", &[1, 1], vec![0x10; 4]),
        ("d.weight_scale", "F32", &[1, 1], float(1.0)),
        ("d.weight_zero_point", "I32", &[1, 1], vec![3, 0, 0, 0]),
        (
            "d.weight_shape",
            "I64",
            &[2],
            [1i64, 7].map(i64::to_le_bytes).concat(),
        ),
        ("e_blocks", "U8", &[2, 1, 16], vec![0x32; 32]),
        ("e_scales", "U8", &[2, 1], vec![127, 126]),
    ];
    vec![safetensors(&tensors)]
}

/// Uses an importance matrix.
pub fn imatrix(bytes: &[u8]) -> bool {
    let file = Bytes::copy_from(bytes).and_then(|bytes| Gguf::parse(bytes, "fuzz"));
    let importances = file.and_then(Importances::new);
    importances.is_ok_and(|read| read.names().all(|name| read.mean_squares(name).is_ok()))
}

/// Returns a file with one matrix and one stack of three matrices.
pub fn imatrix_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("imatrix");
    let keys = [
        ("general.type", Value::from("imatrix")),
        (
            "imatrix.datasets",
            Value::Array(Array::String(vec!["a".into()])),
        ),
        ("imatrix.chunk_count", Value::U32(3)),
    ];
    let keys = keys.map(|(key, value)| (key.to_string(), value));
    let tensors = [
        ("a.in_sum2", 4),
        ("a.counts", 1),
        ("b.in_sum2", 6),
        ("b.counts", 3),
    ];
    let new = tensors.map(|(name, count)| NewTensor {
        name: name.into(),
        format: &F32,
        shape: vec![count],
    });
    let mut writer = Writer::create(&path, &keys, &new).expect("a file");
    for (_, count) in tensors {
        let data = 2.0f32.to_le_bytes().repeat(count);
        writer.write_tensor(&data).expect("data");
    }
    writer.finish().expect("a whole file");
    vec![std::fs::read(path).expect("a file")]
}
