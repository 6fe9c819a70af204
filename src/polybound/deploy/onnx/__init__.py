"""ONNX in and out.

files      reading and writing protobufs, metadata, onnxruntime
export     networks as files: an algebra on the graph
read       files as graphs: a walk over the nodes, for a batch of three and of one
constants  numbers of the file, folded where all operands are constants, their roundings counted
moves      operators that only move entries, by ONNX's reference evaluator
operators  sums, products, matrices, reductions; windows: convolutions and poolings
"""
