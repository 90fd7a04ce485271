//! Types that the host and the kernels share. Each type is defined once, in Rust: its C++ definition is generated and prepended to the text
//! of the `.cu` file that uses it.

use std::ffi::c_void;

/// A type of a kernel parameter, or of a field of a parameter struct.
pub trait DeviceType {
    /// The type's name in C++; for an array, the name of its element type.
    const NAME: &'static str;
    /// Length of an array; `None` for other types.
    const LENGTH: Option<usize> = None;

    /// Appends the C++ definition of the type, preceded by the definitions of the types that it contains.
    fn define(_: &mut Definitions) {}
}

/// A function that appends a type's definition: [`DeviceType::define`].
pub type Define = fn(&mut Definitions);

macro_rules! plain {
    ($($type:ty, $name:literal;)*) => {
        $(impl DeviceType for $type {
            const NAME: &'static str = $name;
        })*
    };
}

plain! {
    c_void, "void";
    f32, "float";
    i8, "i8";
    i32, "int";
    u8, "u8";
    u16, "u16";
    u32, "u32";
    u64, "u64";
}

impl<T: DeviceType, const N: usize> DeviceType for [T; N] {
    const NAME: &'static str = T::NAME;
    const LENGTH: Option<usize> = Some(N);

    fn define(definitions: &mut Definitions) {
        T::define(definitions);
    }
}

/// C++ definitions of types, each added once.
#[derive(Default)]
pub struct Definitions {
    /// Names of the types already defined.
    known: Vec<&'static str>,
    /// The definitions, and any other text between them.
    pub text: String,
}

impl Definitions {
    fn add(&mut self, name: &'static str, text: impl FnOnce() -> String) {
        if !self.known.contains(&name) {
            self.known.push(name);
            self.text += &text();
        }
    }

    /// Adds the struct `T` with these fields and methods. A `static_assert` in the kernel checks that its size equals the size in Rust.
    pub(crate) fn add_struct<T: DeviceType>(&mut self, fields: &[String], methods: &[&str]) {
        self.add(T::NAME, || {
            let align = match align_of::<T>() {
                align @ 16.. => format!("__align__({align}) "),
                _ => String::new(),
            };
            let members = fields.iter().map(String::as_str);
            let members = members.chain(methods.iter().copied());
            let members: String = members.map(|member| format!("  {member};\n")).collect();
            let (name, bytes) = (T::NAME, size_of::<T>());
            format!(
                "struct {align}{name} {{\n{members}}};\nstatic_assert(sizeof({name}) == {bytes}, \"{name} on the host\");\n"
            )
        });
    }

    /// Adds the constants of the enum `T`: each name in capitals, with `prefix` in front.
    pub(crate) fn add_enum<T: DeviceType>(&mut self, prefix: &str, variants: &[(&str, i32)]) {
        self.add(T::NAME, || {
            let constants = variants
                .iter()
                .map(|(name, value)| format!("{prefix}{} = {value}", in_capitals(name)));
            let constants: Vec<_> = constants.collect();
            format!("enum {} {{ {} }};\n", T::NAME, constants.join(", "))
        });
    }
}

/// Converts a name such as `SquaredRelu` to `SQUARED_RELU`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !capitals.is_empty() {
            capitals.push('_');
        }
        capitals.extend(letter.to_uppercase());
    }
    capitals
}

/// Returns the declaration of a field of type `T`. For a field that is a pointer in C++ and a `T` on the host, `pointer` is the pointer
/// type.
pub(crate) fn field<T: DeviceType>(name: &str, pointer: Option<String>) -> String {
    let kind = pointer.unwrap_or(T::NAME.into());
    let length = T::LENGTH.map_or(String::new(), |length| format!("[{length}]"));
    format!("{kind} {name}{length}")
}

/// Defines a `#[repr(C)]` struct that kernels take, and implements [`DeviceType`] for it. A field that holds an address on the host names
/// its pointer type in C++: `weights: Address as *const f32`. Methods are declared here, in C++, and defined in a `.cu` file.
macro_rules! device_struct {
    (
        $(#[$meta:meta])*
        $visible:vis struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                $field_visible:vis $field:ident: $type:ty $(as *$mutability:ident $target:ty)?
            ),* $(,)?
        }
        $($method:literal)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, ::bytemuck::Pod, ::bytemuck::Zeroable)]
        #[repr(C)]
        $visible struct $name {
            $($(#[$field_meta])* $field_visible $field: $type),*
        }

        impl $crate::abi::DeviceType for $name {
            const NAME: &'static str = stringify!($name);

            fn define(definitions: &mut $crate::abi::Definitions) {
                $(<$type as $crate::abi::DeviceType>::define(definitions);)*
                definitions.add_struct::<Self>(
                    &[$($crate::abi::field::<$type>(
                        stringify!($field),
                        $crate::abi::device_struct!(@pointer $($mutability $target)?),
                    )),*],
                    &[$($method),*],
                );
            }
        }
    };
    (@pointer) => { None };
    (@pointer const $target:ty) => {
        Some(format!("const {}*", <$target as $crate::abi::DeviceType>::NAME))
    };
    (@pointer mut $target:ty) => {
        Some(format!("{}*", <$target as $crate::abi::DeviceType>::NAME))
    };
}

/// Defines an enum whose values kernels take, and implements [`DeviceType`] with its C++ constants: `DecayKind("DECAY_")` gives
/// `DECAY_BY_KEY`.
macro_rules! device_enum {
    (
        $(#[$meta:meta])*
        $visible:vis enum $name:ident($prefix:literal) {
            $($(#[$variant_meta:meta])* $variant:ident $(= $value:literal)?),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $visible enum $name {
            $($(#[$variant_meta])* $variant $(= $value)?),*
        }

        impl $crate::abi::DeviceType for $name {
            const NAME: &'static str = stringify!($name);

            fn define(definitions: &mut $crate::abi::Definitions) {
                definitions.add_enum::<Self>(
                    $prefix,
                    &[$((stringify!($variant), $name::$variant as i32)),*],
                );
            }
        }
    };
}

pub(crate) use {device_enum, device_struct};

#[cfg(test)]
mod tests {
    use super::*;

    device_struct! {
        struct Inner {
            codes: u64 as *const u8,
            rows: [i32; 2],
        }
        "__device__ int row(int i) const"
    }

    device_struct! {
        #[repr(align(16))]
        struct Outer {
            at: [Inner; 3],
            weights: [u64; 2] as *mut f32,
            kind: u8,
            unused: [u8; 15],
        }
    }

    device_enum! {
        #[derive(Clone, Copy)]
        enum Kind("KIND_") {
            L2Norm,
            SquaredRelu = 4,
            Last,
        }
    }

    #[test]
    fn a_struct_follows_those_that_it_contains() {
        let mut definitions = Definitions::default();
        for define in [Outer::define, Inner::define, Outer::define] {
            define(&mut definitions);
        }
        let expected = "struct Inner {\n  const u8* codes;\n  int rows[2];\n  __device__ int row(int i) const;\n};\n\
            static_assert(sizeof(Inner) == 16, \"Inner on the host\");\n\
            struct __align__(16) Outer {\n  Inner at[3];\n  float* weights[2];\n  u8 kind;\n  u8 unused[15];\n};\n\
            static_assert(sizeof(Outer) == 80, \"Outer on the host\");\n";
        assert_eq!(definitions.text, expected);
    }

    #[test]
    fn constants_have_the_numbers_of_variants() {
        let mut definitions = Definitions::default();
        Kind::define(&mut definitions);
        let expected = "enum Kind { KIND_L2_NORM = 0, KIND_SQUARED_RELU = 4, KIND_LAST = 5 };\n";
        assert_eq!(definitions.text, expected);
        assert_eq!(Kind::SquaredRelu as i32, 4);
    }
}
