"""ONNX in and out.

files: reading and writing protobufs; export: models as graphs; read: graphs as networks, by way of expressions (what
each tensor is), operators (what each node does), constants (folded), rounding (of the folding), affine (maps put
together) and models (which class of model it is).
"""
