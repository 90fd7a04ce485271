//! Split files.

use waterline_quant::F32;
use waterline_quant::gguf::{Gguf, NewTensor, Value, Writer};

#[test]
fn a_file_in_several_parts_is_opened_by_any_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |part: u64| {
        folder
            .path()
            .join(format!("m-{:05}-of-00003.gguf", part + 1))
    };
    let write = |part: u64, keys: &[(&str, u64)], tensor: &str| {
        let key = |(name, value): &(&str, u64)| (name.to_string(), Value::U64(*value));
        let keys: Vec<_> = keys.iter().map(key).collect();
        let tensor = NewTensor {
            name: tensor.into(),
            format: &F32,
            shape: vec![2],
        };
        let mut writer = Writer::create(path(part), &keys, &[tensor]).expect("a file");
        writer.write_tensor(&[part as u8; 8]).expect("data");
        writer.finish().expect("a whole file");
    };
    let numbers = |part| {
        [
            ("split.no", part),
            ("split.count", 3),
            ("split.tensors.count", 3),
        ]
    };
    for (part, tensor) in [(0, "a"), (1, "b"), (2, "c")] {
        write(part, &numbers(part), tensor);
    }
    for part in 0..3 {
        let file = Gguf::open(path(part)).expect("a file");
        for (value, tensor) in [(0u8, "a"), (1, "b"), (2, "c")] {
            assert_eq!(file.tensor(tensor).expect("a tensor").data[..], [value; 8]);
        }
        assert_eq!(file.tensors().len(), 3);
    }
    let said = |part| Gguf::open(path(part)).err().expect("a reason").to_string();
    write(2, &numbers(1), "c");
    assert!(
        said(0).contains("00003-of-00003") && said(0).contains("expected part 2 of 3"),
        "{}",
        said(0)
    );
    write(2, &numbers(2), "a");
    assert!(said(0).contains("tensor 'a'"), "{}", said(0));
    std::fs::remove_file(path(2)).expect("a file");
    assert!(said(1).contains("m-00003-of-00003.gguf"), "{}", said(1));
    std::fs::rename(path(0), folder.path().join("other.gguf")).expect("a file");
    let renamed = Gguf::open(folder.path().join("other.gguf"))
        .err()
        .expect("a reason");
    assert!(
        renamed.to_string().contains("NAME-00001-of-00003.gguf"),
        "{renamed}"
    );
}
