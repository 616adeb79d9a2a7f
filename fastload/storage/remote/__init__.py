"""Stores at URLs: fetched in pieces, each once for a machine, and kept in a cache on a local disk.

The idea
    A store is spans in files, and the core reads mapped files. So the cache *is* such a file: each
    object has a sparse file of its size, in which what was fetched lies at its own place, and the
    rest is a hole. Formats, engines and the core need no other code path for it. All that changes
    is that the bytes of a batch are made present before the batch is submitted.

Who does what, from the bottom
    service.py      a request: size and tag of an object, a range of it; obstore or fsspec sends it
    requests.py     many of them, repeated, hedged, as many at a time as the link is worth
    area.py         a folder that processes share, with the locks that a killed process loses
    blocks.py       one object: its sparse file, and what of it is there
    cache.py        what is missing is fetched once; what is needed stays; the rest may be evicted
    finding.py      URL -> objects: a file and its sidecar, shards, a folder
    mirror.py       links that give the sparse files their objects' names
    store.py        RemoteStore: all of this as a ``Store``

When bytes are there
    ``RemoteStore.spans`` returns when the bytes of its records are there, and they stay as long as
    the returned ``Spans`` live (``Spans.held``). ``ahead`` starts the same without waiting, which
    the run layer calls in the order of the epoch (``_run/fetch_ahead.py``). ``places`` fetches
    nothing. What opening a store reads (headers, indexes, columns, sidecars) is asked for range by
    range by the formats that can say what they read (``Format.ranged``); those stay as long as the
    store is open. All other formats are fetched whole when they are opened.

Exactness
    An object is known by URL, ETag and size. Requests for another version are refused, as an error.
    Every piece of the cache has a checksum, which each process compares before the first use.
"""
