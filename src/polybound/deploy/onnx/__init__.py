"""ONNX in and out.

files: reading and writing protobufs; export: models as graphs; read: graphs as networks, by way of constants (read,
folded, their roundings counted), expressions (what each other tensor is), operators (what each node does), affine (maps
put together) and models (which class of model it is).
"""
