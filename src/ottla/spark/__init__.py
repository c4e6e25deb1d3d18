"""Topics as tables and streams of Spark, through its Python data source API and without a JAR.

Spark creates these objects in six kinds of Python process and pickles them from one to the next. So modules
here import what they need where they need it, and what a process may keep (connections) is kept by module and
process id, never on the objects.
"""
