// Package extractor turns image files into feature vectors.
//
// It finds the images of a folder, list or idx file ([List]), opens an exported
// vision backbone with its preprocessing ([OpenModel]), and runs one over the
// other on all cores ([Model.Extract]): read, hash, decode, preprocess, ONNX
// session, pooling. [Pixels] goes the same way without a session. What becomes of
// the vectors is the caller's business.
//
// The onnxruntime library is loaded at run time; [FindRuntime] says where it is
// looked for.
package extractor
